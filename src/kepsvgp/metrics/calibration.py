"""Do the probabilities mean what they say? Calibration errors and proper scores.

A bin B of examples with mean confidence conf(B) and accuracy acc(B) is off by
|conf(B) − acc(B)|; an expected calibration error is the mean of that over the examples:

    ECE = Σ_B |B|/N · |conf(B) − acc(B)| = (1/N) Σ_B |Σ_{i∈B} (confidence_i − correct_i)|.

All values are raw: nothing is multiplied by 100.
"""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from kepsvgp.errors import UserError
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
