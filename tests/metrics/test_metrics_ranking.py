import math

import jaxtyping
import numpy as np
import pytest
import reference_metrics as reference
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError
from kepsvgp.metrics import UndefinedMetricWarning, curves, ranking

TOLERANCE = 1e-12


@st.composite
def rankings(draw: st.DrawFn, max_size: int = 30) -> tuple[Tensor, Tensor]:
    """Confidences with many ties and correctness, at least one example of each kind."""
    size = draw(st.integers(2, max_size))
    levels = draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    correct = draw(st.lists(st.booleans(), min_size=size - 2, max_size=size - 2))
    return torch.tensor(levels).double() / 7, torch.tensor([True, False, *correct])


def by_the_authors(confidence: Tensor, correct: Tensor) -> dict[str, Tensor]:
    """The same metrics with the conventions of the authors' program."""
    return ranking.failure_metrics(ranking.rank(confidence, correct).counts, "paper")


@given(rankings(max_size=6))
@settings(max_examples=40)
def test_aurc_under_ties_is_its_mean_over_all_orders(case: tuple[Tensor, Tensor]) -> None:
    confidence, correct = case
    expected = reference.aurc_over_all_orders(confidence.tolist(), correct.tolist())
    assert metrics.aurc(confidence, correct) == pytest.approx(expected, abs=TOLERANCE)


@given(rankings())
def test_ranking_metrics_match_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    confidence, correct = (t.numpy() for t in case)
    fpr, tpr, _ = sklearn.metrics.roc_curve(correct, confidence)
    precision, recall, _ = sklearn.metrics.precision_recall_curve(correct, confidence)
    expected = {
        "auroc": sklearn.metrics.roc_auc_score(correct, confidence),
        "first": fpr[np.argmax(tpr >= 0.95)],
        "nearest": fpr[np.argmin(np.abs(tpr - 0.95))],
        "success": sklearn.metrics.average_precision_score(correct, confidence),
        "error": sklearn.metrics.average_precision_score(~correct, -confidence),
        "trapezoid": sklearn.metrics.auc(recall, precision),
        "excess": metrics.aurc(confidence, correct)
        - reference.least_aurc(sum(correct), sum(~correct)),
    }
    authors = by_the_authors(*case)
    actual = {
        "auroc": metrics.auroc(confidence, correct),
        "first": metrics.fpr95(confidence, correct),
        "nearest": float(authors["fpr95"]),
        "success": metrics.aupr_success(confidence, correct),
        "error": metrics.aupr_error(confidence, correct),
        "trapezoid": float(authors["aupr_success"]),
        "excess": metrics.eaurc(confidence, correct),
    }
    assert actual == pytest.approx(expected, abs=TOLERANCE)


@given(rankings())
def test_eaurc_is_zero_for_the_best_ranking_and_never_negative(case) -> None:
    confidence, correct = case
    best = correct.double() + torch.arange(len(correct)) / 1000
    assert metrics.eaurc(best, correct) == pytest.approx(0, abs=TOLERANCE)
    assert metrics.eaurc(confidence, correct) >= -TOLERANCE


def test_exact_optimum_approaches_the_asymptotic_one() -> None:
    differences = []
    for size in (100, 10_000):
        confidence = torch.linspace(1, 0, size, dtype=torch.float64)
        correct = torch.arange(size) % 4 != 0
        exact = metrics.eaurc(confidence, correct)
        differences.append(abs(exact - float(by_the_authors(confidence, correct)["eaurc"])))
    # both differ by O(1/N)
    assert differences[0] > 0
    assert differences[1] == pytest.approx(differences[0] / 100, rel=0.05)


def test_fpr95_first_reaches_the_recall_where_nearest_falls_short() -> None:
    # 19 correct above one wrong above one correct: recall 19/20 is exactly 0.95
    confidence = torch.linspace(1, 0, 21, dtype=torch.float64)
    correct = torch.arange(21) != 19
    assert metrics.fpr95(confidence, correct) == 0.0
    # 12 correct above one wrong above one correct: 12/13 is nearer to 0.95 than 1, but below
    confidence, correct = confidence[:14], torch.arange(14) != 12
    assert metrics.fpr95(confidence, correct) == 1.0
    assert by_the_authors(confidence, correct)["fpr95"] == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
)
def test_mcc_and_accuracy_match_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels = torch.tensor([y for y, _ in pairs])
    predicted = torch.tensor([p for _, p in pairs])
    probs = torch.nn.functional.one_hot(predicted, 4).double()
    # scikit-learn warns of a single kind of pair
    several = len(set(pairs)) > 1
    expected = sklearn.metrics.matthews_corrcoef(labels, predicted) if several else 0.0
    assert metrics.mcc(probs, labels) == pytest.approx(expected, abs=1e-9)
    assert metrics.accuracy(probs, labels) == sum(y == p for y, p in pairs) / len(pairs)


@pytest.mark.parametrize("right", [True, False])
def test_ranking_metrics_without_both_outcomes_are_defined_or_warn_once(right: bool) -> None:
    confidence, correct = torch.tensor([0.9, 0.5, 0.5]), torch.full((3,), right)
    assert metrics.aurc(confidence, correct) == pytest.approx(0.0 if right else 1.0)
    assert metrics.eaurc(confidence, correct) == pytest.approx(0.0)
    authors = by_the_authors(confidence, correct)
    assert float(authors["eaurc"]) == pytest.approx(0.0)
    assert math.isnan(authors["fpr95"])
    absent = metrics.aupr_error if right else metrics.aupr_success
    present = metrics.aupr_success if right else metrics.aupr_error
    assert present(confidence, correct) == 1.0
    for metric in (metrics.auroc, absent, metrics.fpr95):
        with pytest.warns(UndefinedMetricWarning) as caught:
            assert math.isnan(metric(confidence, correct))
        assert len(caught) == 1


def test_area_under_risk_is_precise_for_a_million_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(1_000_000, generator=generator) < 0.7
    for levels in (10, 1_000_000):
        confidence = torch.arange(len(correct)).mul(levels).div(len(correct), rounding_mode="floor")
        order = curves.order_by(-confidence.double())
        counts = curves.tally(order, correct)
        # each example replaced by the mean of its tie group
        wrong = (
            (~correct).double().view(levels, -1).mean(1).repeat_interleave(len(correct) // levels)
        )
        expected = (wrong.cumsum(0) / torch.arange(1, len(correct) + 1)).mean()
        assert_close(curves.area_under_risk(counts), expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    ("confidence", "correct"),
    [
        (torch.tensor([0.5, torch.nan]), torch.tensor([True, False])),
        (torch.zeros(0), torch.zeros(0, dtype=torch.bool)),
    ],
)
def test_ranking_metrics_refuse_what_has_no_order(confidence: Tensor, correct: Tensor) -> None:
    with pytest.raises(UserError, match="must"):
        metrics.aurc(confidence, correct)


def test_conventions_that_there_are_not_are_refused(monkeypatch) -> None:
    # a person's program has no type checker
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    confidence, correct = torch.tensor([0.9, 0.6, 0.7]), torch.tensor([True, False, True])
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    with pytest.raises(UserError, match='convention must be "exact" or "paper"'):
        metrics.all_metrics(probs, (~correct).long(), convention="papers")
