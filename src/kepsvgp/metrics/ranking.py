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


def eaurc(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """AURC minus the least that a ranking of the same predictions can have; lower is better.

    References:
        Geifman et al., 2019, arXiv:1805.08206.
    """
    counts = rank(confidence, correct).counts
    return float(curves.area_under_risk(counts) - curves.least_area_under_risk(counts))


def auroc(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Probability that a correct prediction is more confident than a wrong one; ties count ½."""
    area = curves.area_under_roc(rank(confidence, correct).counts)
    return defined("auroc", area, NO_ERRORS_OR_NONE_CORRECT)


def fpr95(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Share of wrong predictions accepted when at least 95 % of the correct ones are."""
    rate = curves.false_positive_rate(rank(confidence, correct).counts, 0.95)
    return defined("fpr95", rate, NO_ERRORS_OR_NONE_CORRECT)


def aupr_success(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Average precision of finding the correct predictions by high confidence."""
    area = curves.average_precision(rank(confidence, correct).counts)
    return defined("aupr_success", area, "it needs at least one correct prediction")


def aupr_error(confidence: Float[Array, " example"], correct: Bool[Array, " example"]) -> float:
    """Average precision of finding the wrong predictions by low confidence."""
    area = curves.average_precision(curves.from_below(rank(confidence, correct).counts))
    return defined("aupr_error", area, "it needs at least one wrong prediction")


def failure_metrics(counts: Tally, convention: Convention) -> dict[str, Float[Tensor, "*resample"]]:
    """All metrics of one ranking by name, with correct predictions as its positives."""
    check_option("convention", convention, get_args(Convention))
    area = curves.area_under_risk(counts)
    values = {
        "aurc": area,
        "eaurc": area - curves.least_area_under_risk(counts),
        "auroc": curves.area_under_roc(counts),
        "fpr95": curves.false_positive_rate(counts, 0.95),
        "aupr_success": curves.average_precision(counts),
        "aupr_error": curves.average_precision(curves.from_below(counts)),
    }
    if convention == "paper":
        values["eaurc"] = area - curves.least_area_in_the_limit(counts)
        values["fpr95"] = curves.false_positive_rate_nearest(counts, 0.95)
        values["aupr_success"] = curves.area_under_precision(counts)
    return values


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
