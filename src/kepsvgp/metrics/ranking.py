"""Are the predictions right, and does confidence tell the right ones from the wrong ones?

Failure prediction ranks the examples by confidence. AURC, E-AURC, AUROC, FPR95 and both
AUPRs are areas and points of curves made from that one ranking (`curves`). A correct
prediction is the positive class, except for `aupr_error`.

Any confidence will do: a probability, or the negative of an uncertainty.
"""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.metrics import curves
from kepsvgp.metrics.curves import Order, Tally
from kepsvgp.metrics.inputs import (
    Array,
    Outcome,
    as_scores,
    as_tensor,
    check_option,
    defined,
    outcome,
)

Optimum = Literal["exact", "asymptotic"]
At = Literal["first", "nearest"]
Interpolation = Literal["step", "trapezoid"]
Convention = Literal["exact", "paper"]

NO_ERRORS_OR_NONE_CORRECT = "it needs at least one correct and one wrong prediction"


def accuracy(probs: Float[Array, "example class"], labels: Integer[Array, " example"]) -> float:
    """Share of examples whose most probable class is their label."""
    return float(outcome(probs, labels).correct.double().mean())


def mcc(probs: Float[Array, "example class"], labels: Integer[Array, " example"]) -> float:
    """Matthews correlation of predicted and true labels, in [−1, 1]; higher is better.

    Gorodkin's R_K for more than two classes. 0 if all labels or all predictions are one
    class, as in scikit-learn.

    References:
        Gorodkin, 2004, Comparing two K-category assignments by a K-category correlation
        coefficient, equation 8.
    """
    return float(matthews(outcome(probs, labels)))


def aurc(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Area under the risk-coverage curve, in [0, 1]; lower is better.

    The mean, over n = 1 … N, of the error rate among the n most confident examples. Among
    equally confident examples it is the expected value over all their orders. Libraries that
    integrate with the trapezoid rule and rescale differ by O(1/N).

    References:
        Geifman and El-Yaniv, 2017, arXiv:1705.08500.
    """
    return float(curves.area_under_risk(rank(confidence, correct).counts))


def eaurc(
    confidence: Float[Array, " example"],
    correct: Bool[Array, " example"],
    *,
    optimum: Optimum = "exact",
) -> float:
    """AURC minus the AURC of the best ranking of the same predictions; lower is better.

    Args:
        optimum: "exact" subtracts the best value these N predictions can have, so that a perfect
            ranking has 0; "asymptotic" subtracts r + (1 − r) ln(1 − r), its limit for large N at
            error rate r, as the authors' code does, and leaves about r / 2N more.

    References:
        Geifman et al., 2019, arXiv:1805.08206.
    """
    counts = rank(confidence, correct).counts
    return float(curves.area_under_risk(counts) - least_area(counts, optimum))


def auroc(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Probability that a correct prediction is more confident than a wrong one; ties count ½."""
    area = curves.area_under_roc(rank(confidence, correct).counts)
    return defined("auroc", area, NO_ERRORS_OR_NONE_CORRECT)


def fpr95(
    confidence: Float[Array, " example"],
    correct: Bool[Array, " example"],
    *,
    at: At = "first",
) -> float:
    """Share of wrong predictions accepted when 95 % of the correct ones are; lower is better.

    Args:
        at: "first" takes the highest threshold that accepts at least 95 % of the correct
            predictions; "nearest" takes the corner of the ROC curve nearest to 95 %, which may
            accept fewer, as the authors' code does.
    """
    rate = fpr_at_95(rank(confidence, correct).counts, at)
    return defined("fpr95", rate, NO_ERRORS_OR_NONE_CORRECT)


def aupr_success(
    confidence: Float[Array, " example"],
    correct: Bool[Array, " example"],
    *,
    interpolation: Interpolation = "step",
) -> float:
    """Area under precision and recall with correct predictions as positives.

    Args:
        interpolation: "step" is average precision; "trapezoid" joins the points by straight
            lines, as the authors' code does for this metric (not for `aupr_error`).
    """
    area = precision_area(rank(confidence, correct).counts, interpolation)
    return defined("aupr_success", area, "it needs at least one correct prediction")


def aupr_error(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Average precision of finding the wrong predictions by low confidence."""
    area = curves.average_precision(curves.from_below(rank(confidence, correct).counts))
    return defined("aupr_error", area, "it needs at least one wrong prediction")


def failure_metrics(counts: Tally, convention: Convention) -> dict[str, Float[Tensor, "*resample"]]:
    """All metrics of one ranking by name, with correct predictions as its positives."""
    check_option("convention", convention, get_args(Convention))
    paper = convention == "paper"
    area = curves.area_under_risk(counts)
    return {
        "aurc": area,
        "eaurc": area - least_area(counts, "asymptotic" if paper else "exact"),
        "auroc": curves.area_under_roc(counts),
        "fpr95": fpr_at_95(counts, "nearest" if paper else "first"),
        "aupr_success": precision_area(counts, "trapezoid" if paper else "step"),
        "aupr_error": curves.average_precision(curves.from_below(counts)),
    }


def least_area(counts: Tally, optimum: Optimum) -> Float[Tensor, "*resample"]:
    """`aurc` of the best ranking of the same predictions."""
    check_option("optimum", optimum, get_args(Optimum))
    if optimum == "exact":
        return curves.least_area_under_risk(counts)
    positives, negatives = counts.positives[..., -1], counts.negatives[..., -1]
    right = positives / (positives + negatives)
    # r + (1 − r) ln(1 − r), which is 1 in the limit r → 1
    return 1 - right + torch.xlogy(right, right)


def fpr_at_95(counts: Tally, at: At) -> Float[Tensor, "*resample"]:
    """`fpr95` of a ranking."""
    check_option("at", at, get_args(At))
    if at == "first":
        return curves.false_positive_rate(counts, 0.95)
    return curves.false_positive_rate_nearest(counts.positives, counts.negatives, 0.95)


def precision_area(counts: Tally, interpolation: Interpolation) -> Float[Tensor, "*resample"]:
    """`aupr_success` of a ranking."""
    check_option("interpolation", interpolation, get_args(Interpolation))
    if interpolation == "step":
        return curves.average_precision(counts)
    return curves.area_under_precision(counts)


def matthews(
    given: Outcome, weights: Float[Tensor, "*resample example"] | None = None
) -> Float[Tensor, "*resample"]:
    """`mcc` of checked input, or of each resample that `weights` describes."""
    num_classes = given.probs.shape[1]
    if weights is None:
        size = torch.tensor(len(given.labels), dtype=torch.float64)
        right = given.correct.sum(dtype=torch.float64)
        labels = torch.bincount(given.labels, minlength=num_classes).double()
        guesses = torch.bincount(given.predicted, minlength=num_classes).double()
    else:
        size, right = weights.sum(-1), weights @ given.correct.double()
        labels = weights @ torch.nn.functional.one_hot(given.labels, num_classes).double()
        guesses = weights @ torch.nn.functional.one_hot(given.predicted, num_classes).double()
    # R_K = (c s − Σ t_k p_k) / √((s² − Σ p_k²) (s² − Σ t_k²))
    covariance = right * size - (labels * guesses).sum(-1)
    spread = [(size.square() - k.square().sum(-1)).sqrt() for k in (guesses, labels)]
    product = spread[0] * spread[1]
    return (covariance / product).where(product > 0, 0.0)


class Ranking(NamedTuple):
    """Examples in the order of their confidence, and how many are right down to each."""

    order: Order
    counts: Tally


def rank(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> Ranking:
    """The ranking of the examples by confidence, with the correct ones as its positives."""
    scores, flags = as_scores(confidence, "confidence"), as_tensor(correct)
    if len(scores) == 0 or flags.shape != scores.shape or flags.dtype != torch.bool:
        raise UserError(
            "confidence and correct must be vectors of equal length, at least 1, and correct must "
            f"be boolean; got shapes {tuple(scores.shape)} and {tuple(flags.shape)}, {flags.dtype}."
        )
    order = curves.order_by(scores)
    return Ranking(order, curves.tally(order, flags))
