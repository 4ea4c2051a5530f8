import math

import pytest
import reference_metrics as reference
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError


def draw_probs(size: int, num_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(num_classes, (size,), generator=generator)


def check_ece(probs: Tensor, labels: Tensor, num_bins: int) -> None:
    """The calibration error against loops."""
    confidence, predicted = probs.max(1)
    right = (predicted == labels).tolist()
    expected = reference.binned_error(confidence.tolist(), right, num_bins)
    assert metrics.ece(probs, labels, num_bins=num_bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("size", "num_classes"), [(1, 2), (7, 3), (101, 2), (211, 5)])
@pytest.mark.parametrize("num_bins", [1, 4, 15])
def test_ece_matches_loops(size: int, num_classes: int, num_bins: int) -> None:
    check_ece(*draw_probs(size, num_classes), num_bins)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=20))
def test_ece_of_values_on_the_edges_matches_loops(pairs: list[tuple[int, int]]) -> None:
    table = torch.tensor([[6, 1, 1], [4, 4, 0], [8, 0, 0], [3, 3, 2], [1, 6, 1]]).double() / 8
    probs = table[[row for row, _ in pairs]]
    labels = torch.tensor([label for _, label in pairs])
    # eighths are edges of 2, 4 and 8 bins
    for num_bins in (2, 3, 4, 8, 15):
        check_ece(probs, labels, num_bins)


def test_proper_scores_match_scikit_learn() -> None:
    probs, labels = draw_probs(101, 5)
    y, p = labels.numpy(), probs.numpy()
    assert metrics.nll(p, y) == pytest.approx(sklearn.metrics.log_loss(y, p), abs=1e-12)
    expected = sklearn.metrics.brier_score_loss(y, p, labels=range(5), scale_by_half=False)
    assert metrics.brier(p, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_bins_include_their_upper_edge_in_every_precision(dtype: torch.dtype) -> None:
    # 0.6 belongs to (2/5, 3/5] with 0.55, not to (3/5, 4/5] with 0.7
    probs = torch.tensor([[0.6, 0.4], [0.55, 0.45], [0.7, 0.3]], dtype=dtype)
    labels = torch.tensor([1, 0, 1])
    expected = (abs(0.6 + 0.55 - 1) + 0.7) / 3
    assert metrics.ece(probs, labels, num_bins=5) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_give_the_values_of_what_they_hold(dtype: torch.dtype) -> None:
    probs, labels = draw_probs(101, 3)
    probs = probs.to(dtype)
    expected = metrics.all_metrics(probs.double(), labels)
    assert metrics.all_metrics(probs, labels) == pytest.approx(expected, rel=1e-5)


def test_probabilities_of_exactly_zero_and_one_have_finite_scores() -> None:
    probs, labels = torch.eye(3), torch.tensor([0, 1, 0])
    assert metrics.nll(probs, labels) == pytest.approx(-math.log(torch.finfo().tiny) / 3)
    assert metrics.nll(probs, labels, floor=0.0) == math.inf
    assert metrics.nll(probs, torch.arange(3)) == 0.0
    assert metrics.brier(probs, labels) == pytest.approx(2 / 3)
    assert metrics.ece(probs, labels) == pytest.approx(1 / 3)


def test_brier_keeps_its_precision_near_certainty_in_float32() -> None:
    probs = torch.tensor([[1 - 2.0**-20, 2.0**-20]])
    assert metrics.brier(probs, torch.tensor([0])) == pytest.approx(2 * 2.0**-40, rel=1e-6)


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0])),
        (torch.tensor([[30.0, 70.0]]), torch.tensor([0])),
        (torch.tensor([[torch.nan, 1.0]]), torch.tensor([0])),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2])),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1])),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)),
    ],
)
def test_metrics_refuse_what_are_no_probabilities_or_labels(probs: Tensor, labels: Tensor) -> None:
    with pytest.raises(UserError, match="must"):
        metrics.all_metrics(probs, labels)


def test_metrics_leave_their_input_as_it_was() -> None:
    probs, labels = draw_probs(11, 3)
    before = probs.clone()
    metrics.all_metrics(probs, labels)
    assert_close(probs, before, rtol=0, atol=0)
