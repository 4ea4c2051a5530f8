"""When to answer: abstention by confidence, with what can be promised.

An example is accepted if its confidence is at least a threshold; coverage is the share of
accepted examples and selective risk the error rate among them. A threshold is chosen on a
calibration set that neither trained nor selected the model, and applied to others as
`confidence >= threshold`. A threshold of infinity accepts nothing.
"""

import math
from typing import NamedTuple

from jaxtyping import Bool, Float
from scipy.special import betainccinv
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.metrics import curves
from kepsvgp.metrics.inputs import Array, as_scores
from kepsvgp.metrics.ranking import rank


class RiskCoverage(NamedTuple):
    """One point for each distinct confidence, from the most confident on."""

    threshold: Float[Tensor, " group"]
    coverage: Float[Tensor, " group"]
    risk: Float[Tensor, " group"]


class Threshold(NamedTuple):
    """Accept confidences of at least `threshold`; what share that was at calibration."""

    threshold: float
    coverage: float


class GuaranteedThreshold(NamedTuple):
    """A threshold with coverage and risk at calibration, and the bound on the true risk."""

    threshold: float
    coverage: float
    risk: float
    bound: float


def risk_coverage_curve(
    confidence: Float[Array, " example"], correct: Bool[Array, " example"]
) -> RiskCoverage:
    """Error rate among the accepted examples for every threshold that makes a difference."""
    order, counts = rank(confidence, correct)
    accepted = counts.positives + counts.negatives
    return RiskCoverage(order.score, accepted / accepted[-1], counts.negatives / accepted)


def threshold_for_coverage(confidence: Float[Array, " example"], coverage: float) -> Threshold:
    """The highest threshold that accepts at least the wanted share of these examples.

    Equal confidences are accepted together, so the coverage reached may be larger.
    """
    if not 0 <= coverage <= 1:
        raise UserError(f"coverage must lie in [0, 1]; got {coverage}.")
    scores = as_scores(confidence, "confidence")
    if len(scores) == 0:
        raise UserError("confidence must hold at least one example; got an empty array.")
    if coverage == 0:
        return Threshold(math.inf, 0.0)
    order = curves.order_by(scores)
    reached = (order.last + 1).double() / len(scores)
    group = int((reached < coverage).sum())
    return Threshold(float(order.score[group]), float(reached[group]))


def threshold_for_risk(
    confidence: Float[Array, " example"],
    correct: Bool[Array, " example"],
    risk: float,
    *,
    delta: float = 0.05,
) -> GuaranteedThreshold:
    """A threshold whose true selective risk is at most `risk` with probability 1 − δ.

    Selection with guaranteed risk (SGR): bisect over the m distinct confidences of the
    calibration set, bound the true risk of each of the at most k = ⌈log₂(m + 1)⌉ thresholds
    tried by the exact binomial tail at level δ/k, and keep the last one whose bound is at most
    `risk`. If there is none, nothing is accepted.

    The probability is over calibration sets drawn from the distribution the threshold is used
    on. The union over k bounds holds where the true selective risk does not fall as
    coverage grows, that is where confidence ranks usefully: then the thresholds an error-free
    search would try are fixed, and a wrong one can be kept only if its own bound fails.
    Differs from the published algorithm, which returns the last threshold tried even if its
    bound is larger than `risk`, and never tries to accept everything.

    References:
        Geifman and El-Yaniv, 2017, arXiv:1705.08500, algorithm 1 and theorem 3.2.
    """
    if not (0 < risk < 1 and 0 < delta < 1):
        raise UserError(f"risk and delta must lie in (0, 1); got {risk} and {delta}.")
    order, counts = rank(confidence, correct)
    accepted = counts.positives + counts.negatives
    num_groups, size = len(accepted), int(accepted[-1])
    level = delta / math.ceil(math.log2(num_groups + 1))
    best = GuaranteedThreshold(math.inf, 0.0, 0.0, 0.0)
    # the first `low` groups can be accepted, the first `high` cannot
    low, high = 0, num_groups + 1
    while high - low > 1:
        middle = (low + high) // 2
        errors, taken = int(counts.negatives[middle - 1]), int(accepted[middle - 1])
        bound = risk_bound(errors, taken, level)
        if bound > risk:
            high = middle
            continue
        low = middle
        threshold = float(order.score[middle - 1])
        best = GuaranteedThreshold(threshold, taken / size, errors / taken, bound)
    return best


def smallest_risk(
    confidence: Float[Array, " example"], correct: Bool[Array, " example"], *, delta: float = 0.05
) -> float:
    """The smallest risk for which `threshold_for_risk` accepts anything.

    Where nothing is accepted the search halves what it tries: m/2, m/4, …, 1 groups.
    """
    counts = rank(confidence, correct)[1]
    accepted = counts.positives + counts.negatives
    level = delta / math.ceil(math.log2(len(accepted) + 1))
    best, middle = 1.0, (len(accepted) + 1) // 2
    while middle >= 1:
        errors, taken = int(counts.negatives[middle - 1]), int(accepted[middle - 1])
        best, middle = min(best, risk_bound(errors, taken, level)), middle // 2
    return best


def risk_bound(errors: int, size: int, delta: float) -> float:
    """The error rate under which at most `errors` of `size` have probability δ.

    The b with Σ_{j ≤ errors} C(size, j) b^j (1 − b)^{size − j} = δ; the true rate is larger with
    probability at most δ.

    References:
        Geifman and El-Yaniv, 2017, arXiv:1705.08500, lemma 3.1.
    """
    if errors >= size:
        return 1.0
    # Σ_{j ≤ errors} … = 1 − I_b(errors + 1, size − errors), the incomplete beta function
    return float(betainccinv(errors + 1, size - errors, delta))
