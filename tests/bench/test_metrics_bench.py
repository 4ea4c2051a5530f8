import pytest
import torch

from kepsvgp.bench.metrics_bench import measure


@pytest.mark.slow
def test_metrics_are_measured_in_sorts_and_threads_are_given_back() -> None:
    threads = torch.get_num_threads()
    measured = measure(repeats=1)
    ratio = measured["paper_seconds"] / measured["sort_seconds"]
    assert measured["paper_in_sorts"] == pytest.approx(ratio)
    assert torch.get_num_threads() == threads
