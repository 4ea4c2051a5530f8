"""Do the probabilities mean what they say? Calibration errors and proper scores.

A bin B of examples with mean confidence conf(B) and accuracy acc(B) is off by
|conf(B) − acc(B)|; an expected calibration error is the mean of that over the examples:

    ECE = Σ_B |B|/N · |conf(B) − acc(B)| = (1/N) Σ_B |Σ_{i∈B} (confidence_i − correct_i)|.

All values are raw: nothing is multiplied by 100.
"""

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.metrics import curves
from kepsvgp.metrics.inputs import Array, Outcome, outcome


def ece(
    probs: Float[Array, "example class"], labels: Integer[Array, " example"], *, num_bins: int = 15
) -> float:
    """Expected calibration error of the predicted label, in [0, 1]; lower is better.

    The bins are (0, 1/n], (1/n, 2/n] … ((n−1)/n, 1]; a confidence of exactly 1 is in the last one.

    References:
        Naeini et al., 2015; Guo et al., 2017, arXiv:1706.04599, equation 3.
    """
    return float(top_label_ece(outcome(probs, labels), num_bins))


def ece_classwise(
    probs: Float[Array, "example class"], labels: Integer[Array, " example"], *, num_bins: int = 15
) -> float:
    """Mean over the classes of the calibration error of that class's probability.

    For class c the bins hold all examples by their probability of c, and what is compared is
    its mean with the share of examples whose label is c. A probability of exactly 0 is in
    the first bin.

    References:
        Kull et al., 2019, arXiv:1910.12656, equation 4.
    """
    given = outcome(probs, labels)
    num_examples, num_classes = given.probs.shape
    bins = torch.bucketize(given.probs, _inner_edges(num_bins, given.probs.dtype))
    bins += num_bins * torch.arange(num_classes)
    residual = _residual(given).double()
    total = torch.bincount(bins.flatten(), residual.flatten(), minlength=num_bins * num_classes)
    return float(total.abs().sum()) / (num_examples * num_classes)


def ece_adaptive(
    probs: Float[Array, "example class"], labels: Integer[Array, " example"], *, num_bins: int = 15
) -> float:
    """Calibration error of the predicted label over bins of equally many examples, in [0, 1].

    The examples sorted by confidence are cut at ranks b·N/n. A group of equal confidences that
    a cut goes through is shared in proportion, so their order does not matter.

    References:
        Nguyen and O'Connor, 2015, arXiv:1508.05154.
    """
    given = outcome(probs, labels)
    order = curves.order_by(given.confidence)
    counts = curves.tally(order, given.correct)
    _check_bins(num_bins)
    accepted = np.append(0, counts.positives + counts.negatives)
    # Σ (confidence − correct) over all examples down to the end of each group
    total = np.append(0, (np.diff(accepted) * order.score.double().numpy()).cumsum())
    residual = total - np.append(0, counts.positives)
    cuts = np.arange(num_bins + 1) * len(given.labels) / num_bins
    # the broken line through the ends of the groups, at the cuts
    parts = np.diff(np.interp(cuts, accepted, residual))
    return float(np.abs(parts).sum()) / len(given.labels)


def nll(
    probs: Float[Array, "example class"],
    labels: Integer[Array, " example"],
    *,
    floor: float | None = None,
) -> float:
    """Mean negative log-likelihood of the labels, in nats; lower is better.

    Args:
        floor: Smaller probabilities count as this one. By default the smallest normal number of
            the array's precision, so that a probability that was rounded to 0 costs a finite
            amount (87 nats in float32, 708 in float64); with 0 it costs infinity.
    """
    return float(each_nll(outcome(probs, labels), floor).mean())


def brier(probs: Float[Array, "example class"], labels: Integer[Array, " example"]) -> float:
    """Mean over examples of Σ_c (p_c − 1[y = c])², in [0, 2]; lower is better.

    The sum is over all classes, also for two of them (where others halve it).

    References:
        Brier, 1950, Verification of forecasts expressed in terms of probability.
    """
    return float(each_brier(outcome(probs, labels)).mean())


def top_label_ece(
    given: Outcome, num_bins: int, weights: Float[Tensor, "*resample example"] | None = None
) -> Float[Tensor, "*resample"]:
    """`ece` of checked input, or of each resample that `weights` describes."""
    bins = torch.bucketize(given.confidence, _inner_edges(num_bins, given.confidence.dtype))
    residual = given.confidence.double() - given.correct.double()
    if weights is None:
        total = torch.bincount(bins, residual, minlength=num_bins)
        return total.abs().sum() / len(residual)
    by_bin = torch.zeros(len(bins), num_bins, dtype=torch.float64)
    by_bin[torch.arange(len(bins)), bins] = residual
    return (weights @ by_bin).abs().sum(-1) / weights.sum(-1)


def each_nll(given: Outcome, floor: float | None = None) -> Float[Tensor, " example"]:
    """−log p(label) of each example."""
    floor = torch.finfo(given.probs.dtype).tiny if floor is None else floor
    return -_of_label(given).clamp(min=floor).log()


def each_brier(given: Outcome) -> Float[Tensor, " example"]:
    """Squared distance of each example's probabilities from its label."""
    residual = _residual(given)
    return torch.einsum("nk,nk->n", residual, residual).double()


def _residual(given: Outcome) -> Tensor:
    """p_c − 1[y = c], which loses no precision where p_c is near 1."""
    return given.probs.scatter_add(1, given.labels[:, None], -torch.ones_like(given.probs[:, :1]))


def _of_label(given: Outcome) -> Tensor:
    return given.probs.gather(1, given.labels[:, None])[:, 0].double()


def _inner_edges(num_bins: int, dtype: torch.dtype) -> Tensor:
    """1/n … (n−1)/n, rounded as the probabilities are, so that 0.2 in float32 is on its edge."""
    _check_bins(num_bins)
    return (torch.arange(1, num_bins, dtype=torch.float64) / num_bins).to(dtype)


def _check_bins(num_bins: int) -> None:
    if num_bins < 1:
        raise UserError(f"num_bins must be at least 1; got {num_bins}.")
