import math
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kepsvgp import metrics
from kepsvgp.errors import UserError
from kepsvgp.metrics import UndefinedMetricWarning

RANKING = ["aurc", "eaurc", "auroc", "fpr95", "aupr_success", "aupr_error"]
NAMES = ["accuracy", "mcc", *RANKING, "ece", "nll", "brier"]
# the authors' program computes these two in float32
SINGLE_PRECISION = {"ece": 1e-7, "nll": 1e-6}


@pytest.mark.parametrize("name", ["multiclass", "binary"])
def test_paper_convention_equals_the_authors_numbers(golden: Path, name: str) -> None:
    expected = np.load(golden / f"metrics_{name}.npz")
    actual = metrics.all_metrics(expected["probs"], expected["labels"], convention="paper")
    for key in set(NAMES) - {"mcc"}:
        tolerance = SINGLE_PRECISION.get(key, 1e-12)
        assert actual[key] == pytest.approx(float(expected[key]), abs=tolerance), key


@pytest.mark.parametrize("name", ["multiclass", "binary"])
def test_exact_convention_is_within_its_stated_distance_of_the_authors(golden, name) -> None:
    expected = np.load(golden / f"metrics_{name}.npz")
    actual = metrics.all_metrics(expected["probs"], expected["labels"])
    size, errors = len(expected["labels"]), 1 - expected["accuracy"]
    # the optimum of N examples exceeds its limit by about r / 2N, the area of half a step
    assert expected["eaurc"] - actual["eaurc"] == pytest.approx(errors / (2 * size), rel=0.02)
    # the nearest corner is never further right than the first point that reaches the recall,
    # here by no more than a few wrong predictions
    assert 0 <= actual["fpr95"] - expected["fpr95"] <= 0.01
    # lines between points against steps: half a step of recall a positive
    assert actual["aupr_success"] == pytest.approx(float(expected["aupr_success"]), abs=1 / 500)
    for key in set(NAMES) - {"mcc", "eaurc", "fpr95", "aupr_success"}:
        tolerance = SINGLE_PRECISION.get(key, 1e-12)
        assert actual[key] == pytest.approx(float(expected[key]), abs=tolerance), key


def test_all_metrics_equal_the_functions_of_their_names(golden: Path) -> None:
    data = np.load(golden / "metrics_multiclass.npz")
    probs, labels = data["probs"], data["labels"]
    found = metrics.outcome(probs, labels)
    values = metrics.all_metrics(probs, labels)
    assert list(values) == NAMES
    for name in ("accuracy", "mcc", "ece", "nll", "brier"):
        assert values[name] == getattr(metrics, name)(probs, labels)
    for name in RANKING:
        assert values[name] == getattr(metrics, name)(found.confidence, found.correct)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=3, max_size=20),
    st.randoms(use_true_random=False),
    st.sampled_from(["exact", "paper"]),
)
def test_all_metrics_ignore_the_order_of_the_data(pairs, random, convention) -> None:
    table = torch.tensor([[6, 1, 1], [4, 4, 0], [8, 0, 0], [3, 3, 2], [1, 6, 1]]).double() / 8
    # the first two rows make sure that one prediction is right and one wrong
    pairs = [(0, 0), (0, 1), *pairs]
    order = list(range(len(pairs)))
    random.shuffle(order)
    probs, labels = table[[row for row, _ in pairs]], torch.tensor([y for _, y in pairs])
    expected = metrics.all_metrics(probs, labels, convention=convention)
    actual = metrics.all_metrics(probs[order], labels[order], convention=convention)
    assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("probs", "labels", "undefined"),
    [
        ([[0.8, 0.2], [0.3, 0.7]], [0, 1], {"auroc", "fpr95", "aupr_error"}),
        ([[0.8, 0.2], [0.3, 0.7]], [1, 0], {"auroc", "fpr95", "aupr_success"}),
        ([[0.8, 0.2], [0.7, 0.3]], [0, 0], {"auroc", "fpr95", "aupr_error"}),
        ([[0.8, 0.2]], [0], {"auroc", "fpr95", "aupr_error"}),
        ([[0.8, 0.2]], [1], {"auroc", "fpr95", "aupr_success"}),
        ([[1.0]], [0], {"auroc", "fpr95", "aupr_error"}),
    ],
    ids=["all correct", "all wrong", "one label", "one right", "one wrong", "one class"],
)
@pytest.mark.parametrize("convention", ["exact", "paper"])
def test_all_metrics_warn_once_for_what_is_undefined(probs, labels, undefined, convention) -> None:
    with pytest.warns(UndefinedMetricWarning) as caught:
        values = metrics.all_metrics(
            torch.tensor(probs), torch.tensor(labels), convention=convention
        )
    assert len(caught) == 1
    assert {name for name, value in values.items() if math.isnan(value)} == undefined
    assert all(name in str(caught[0].message) for name in undefined)


@pytest.mark.parametrize(
    "changed",
    [
        lambda a: a[::-1].copy()[::-1],
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        lambda a: np.broadcast_to(a, a.shape),
    ],
    ids=["backwards", "of another machine", "not to be written"],
)
def test_arrays_that_torch_cannot_share_are_copied(changed) -> None:
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], size=50)
    labels = np.arange(50) % 3

    found = metrics.all_metrics(changed(probs), changed(labels))

    assert found == metrics.all_metrics(probs, labels)


def test_labels_that_are_no_integers_are_refused() -> None:
    probs, labels = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
    # as users have it, without the checks of types that tests run with
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert metrics.accuracy(probs, labels.astype(float)) == 0.75
        with pytest.raises(UserError, match=r"one integer for each of the 4 rows .*float64"):
            metrics.accuracy(probs, labels + 0.9)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
