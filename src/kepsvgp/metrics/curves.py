"""One sort, and every curve that follows from it.

Sort N examples from the largest score to the smallest and join equal scores in groups.
What remains to know of them is, for each group k, how many positives P_k and negatives N_k
score at least as high. The ROC curve is (N_k, P_k), precision is P_k / (P_k + N_k) and, with
the wrong predictions as negatives, the selective risk is N_k / (P_k + N_k). Nothing
here depends on the order in which tied examples came.

The counts may have leading axes: with weights they are those of bootstrap resamples, for
which the sort need not be repeated.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor


class Order(NamedTuple):
    """Examples from the largest score to the smallest, equal scores in one group."""

    example: Int[Tensor, " example"]
    last: Int[Tensor, " group"]
    score: Float[Tensor, " group"]


class Tally(NamedTuple):
    """How many positives and negatives score at least as high as each group."""

    positives: Float[Tensor, "*resample group"]
    negatives: Float[Tensor, "*resample group"]


def order_by(scores: Float[Tensor, " example"]) -> Order:
    """The order of the examples by descending score, and where each group of equals ends."""
    # numpy sorts several times faster than torch on a CPU; stability is not needed
    index = torch.from_numpy(np.argsort(-scores.numpy()))
    ranked = scores.index_select(0, index)
    changes = ranked[1:] != ranked[:-1]
    last = torch.cat([changes.nonzero()[:, 0], torch.full((1,), len(ranked) - 1)])
    return Order(index, last, ranked[last])


def tally(
    order: Order,
    positive: Bool[Tensor, " example"],
    weights: Num[Tensor, "*resample example"] | None = None,
) -> Tally:
    """Cumulative counts of positives and negatives, in float64, where they are exact.

    Args:
        weights: How often each example occurs in each resample; once by default.
    """
    hits = positive.index_select(0, order.example)
    if weights is None:
        positives = hits.cumsum(0, dtype=torch.float64).index_select(0, order.last)
        return Tally(positives, (order.last + 1) - positives)
    ranked = weights.index_select(-1, order.example).double()
    positives = (ranked * hits).cumsum(-1).index_select(-1, order.last)
    return Tally(positives, ranked.cumsum(-1).index_select(-1, order.last) - positives)


def from_below(counts: Tally) -> Tally:
    """The counts of the reversed ranking with positives and negatives exchanged."""

    def flip(cumulative: Tensor) -> Tensor:
        return (cumulative[..., -1:] - _before(cumulative)).flip(-1)

    return Tally(flip(counts.negatives), flip(counts.positives))


def area_under_risk(counts: Tally) -> Float[Tensor, "*resample"]:
    """Mean over n of the expected share of negatives among the n highest scores.

    In random order within a group of g with e negatives, a accepted and E rejected before it,
    the expected count at a < n ≤ a + g is E + (n − a) e/g, so the group adds
    Σ_n (E + (n − a) e/g) / n = e + (E − a e/g) (H_{a+g} − H_a), with harmonic numbers H.
    """
    accepted = counts.positives + counts.negatives
    before = _before(accepted)
    size = accepted - before
    negatives_before = _before(counts.negatives)
    negatives = counts.negatives - negatives_before
    rate = negatives / size.clamp(min=1)
    # H_{a+1} − H_a is known without the rounding of the table
    table = harmonic_numbers(accepted)
    spread = torch.where(
        size == 1, 1 / accepted.clamp(min=1), table[accepted.long()] - table[before.long()]
    )
    # Σ_groups e + (E − a e/g) (H_{a+g} − H_a)
    total = (negatives + (negatives_before - before * rate) * spread).sum(-1)
    return total / accepted[..., -1]


def least_area_under_risk(counts: Tally) -> Float[Tensor, "*resample"]:
    """`area_under_risk` if all negatives had the lowest scores.

    With E negatives and P positives: (1/N) Σ_{n=P+1}^{N} (n − P)/n = (E − P (H_N − H_P)) / N.
    """
    positives, negatives = counts.positives[..., -1], counts.negatives[..., -1]
    total = positives + negatives
    table = harmonic_numbers(total)
    return (negatives - positives * (table[total.long()] - table[positives.long()])) / total


def least_area_in_the_limit(counts: Tally) -> Float[Tensor, "*resample"]:
    """`least_area_under_risk` for N → ∞ at error rate r: r + (1 − r) ln(1 − r), 1 for r → 1."""
    positives, negatives = counts.positives[..., -1], counts.negatives[..., -1]
    right = positives / (positives + negatives)
    return 1 - right + torch.xlogy(right, right)


def area_under_roc(counts: Tally) -> Float[Tensor, "*resample"]:
    """Probability that a positive scores above a negative, ties counting one half."""
    num_negatives = counts.negatives[..., -1:]
    # Σ_groups positives · (negatives below + ½ negatives beside)
    beside_and_above = (counts.negatives + _before(counts.negatives)) / 2
    wins = (_steps(counts.positives) * (num_negatives - beside_and_above)).sum(-1)
    return wins / (counts.positives[..., -1] * num_negatives[..., 0])


def false_positive_rate(counts: Tally, recall: float) -> Float[Tensor, "*resample"]:
    """False-positive rate at the highest threshold whose recall is at least `recall`."""
    reached = counts.positives / counts.positives[..., -1:]
    group = (reached < recall).sum(-1, keepdim=True)
    rates = counts.negatives / counts.negatives[..., -1:]
    chosen = rates.gather(-1, group.clamp(max=rates.shape[-1] - 1))[..., 0]
    return chosen.where(counts.positives[..., -1] > 0, torch.nan)


def false_positive_rate_nearest(counts: Tally, recall: float) -> Float[Tensor, ""]:
    """False-positive rate at the corner of the ROC curve whose recall is nearest to `recall`.

    Corners are the origin, the first and the last point, and those where the curve turns, as
    scikit-learn's `roc_curve` gives them by default; the first of two that are equally near.
    """
    positives, negatives = counts
    turns = (positives.diff(n=2) != 0) | (negatives.diff(n=2) != 0)
    ends = torch.ones(1, dtype=torch.bool)
    # a curve of one group has one point, which is both ends
    corner = torch.cat([ends, turns, ends])[: len(positives)]
    origin = torch.zeros(1, dtype=torch.float64)
    tpr = torch.cat([origin, positives[corner]]) / positives[-1]
    fpr = torch.cat([origin, negatives[corner]]) / negatives[-1]
    return fpr[(tpr - recall).abs().argmin()].where(positives[-1] > 0, torch.nan)


def average_precision(counts: Tally) -> Float[Tensor, "*resample"]:
    """Σ_k (recall_k − recall_{k−1}) · precision_k over the groups, without interpolation."""
    precision = counts.positives / (counts.positives + counts.negatives).clamp(min=1)
    return (_steps(counts.positives) * precision).sum(-1) / counts.positives[..., -1]


def area_under_precision(counts: Tally) -> Float[Tensor, "*resample"]:
    """Area under the precision-recall curve by the trapezoid rule, from (recall 0, precision 1)."""
    accepted = counts.positives + counts.negatives
    precision = (counts.positives / accepted.clamp(min=1)).where(accepted > 0, 1.0)
    left = torch.cat([torch.ones_like(precision[..., :1]), precision[..., :-1]], dim=-1)
    # Σ_k (recall_k − recall_{k−1}) (precision_k + precision_{k−1}) / 2
    area = (_steps(counts.positives) * (precision + left) / 2).sum(-1)
    return area / counts.positives[..., -1]


def harmonic_numbers(counts: Float[Tensor, "*shape"]) -> Float[Tensor, " number"]:
    """H_0 … H_n for the largest n among the counts, with H_n = 1 + ½ + … + 1/n."""
    largest = int(counts.max())
    reciprocals = torch.arange(largest + 1, dtype=torch.float64).reciprocal()
    reciprocals[0] = 0
    return reciprocals.cumsum(0)


def _before(cumulative: Tensor) -> Tensor:
    """Each group's cumulative count up to the group above it."""
    return torch.cat([torch.zeros_like(cumulative[..., :1]), cumulative[..., :-1]], dim=-1)


def _steps(cumulative: Tensor) -> Tensor:
    """What each group adds to a cumulative count."""
    return cumulative.diff(dim=-1, prepend=torch.zeros_like(cumulative[..., :1]))
