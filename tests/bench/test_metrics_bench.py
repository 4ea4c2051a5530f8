import pytest
import torch

from kepsvgp.bench.metrics_bench import measure


@pytest.mark.slow
def test_all_metrics_of_a_million_examples_cost_less_than_ten_sorts() -> None:
    threads = torch.get_num_threads()
    measured = measure(repeats=2)
    assert measured["paper_in_sorts"] <= 10
    assert measured["paper_seconds"] < measured["everything_seconds"]
    assert torch.get_num_threads() == threads
