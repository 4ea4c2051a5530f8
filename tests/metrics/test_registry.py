import pytest
import torch

from kepsvgp import metrics
from kepsvgp.metrics.registry import METRICS, OOD_SCORES

PROBS = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
TARGETS = torch.tensor([0, 1, 1, 0])


def of(needs: str) -> set[str]:
    return {name for name, metric in METRICS.items() if metric.needs == needs}


def test_registry_has_every_metric_that_is_computed() -> None:
    assert set(metrics.all_metrics(PROBS, TARGETS)) == of("probs")
    scores = metrics.ood_metrics(PROBS[:, 0], PROBS[:, 1], positive="in")
    assert {*scores, *(f"{m}_{s}" for m in scores for s in OOD_SCORES)} == of("ood_scores")


def test_direction_is_that_of_the_better_prediction() -> None:
    good = metrics.all_metrics(torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]]), TARGETS[:3])
    bad = metrics.all_metrics(torch.tensor([[0.1, 0.9], [0.1, 0.9], [0.95, 0.05]]), TARGETS[:3])
    better = {name: METRICS[name].sign * (good[name] - bad[name]) for name in good}
    # how many are wrong decides what is there to find
    del better["aupr_error"], better["eaurc"]
    assert all(gain > 0 for gain in better.values()), better


@pytest.mark.parametrize(
    ("name", "value", "text", "paper"),
    [
        ("accuracy", 0.83501, "83.50", "83.50"),
        ("aurc", 0.0351, "0.0351", "35.10"),
        ("nll", 0.5, "0.5000", "5.00"),
        ("forward_seconds", 0.012345, "0.0123", "0.0123"),
        ("ece", float("nan"), "not finite", "nan"),
    ],
)
def test_values_are_written_in_the_unit_of_the_page_and_of_the_paper(
    name, value, text, paper
) -> None:
    assert METRICS[name].text(value) == text
    assert METRICS[name].paper_text(value) == paper
