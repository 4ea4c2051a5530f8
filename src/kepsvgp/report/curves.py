"""The numbers behind the pictures, as plain functions of NumPy arrays.

An example is answered when its confidence is at least a threshold t, so examples of equal
confidence are answered together and nothing depends on the order of the data:

    coverage(t) = #{conf ≥ t} / N        risk(t) = #{conf ≥ t and wrong} / #{conf ≥ t}

The curve itself is `metrics.risk_coverage_curve`; the page computes it again in JavaScript
when its slider moves.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.stats import binomtest

from kepsvgp.metrics.selective import RiskCoverage

NUM_BINS = 15
# bars of fewer examples are drawn faintly
FEW = 10


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram draws: one entry per bin of confidence.

    `low` and `high` are the ends of Wilson's 95% interval of the accuracy.
    """

    edges: Float[ndarray, " edge"]
    count: Int[ndarray, " bin"]
    confidence: Float[ndarray, " bin"]
    accuracy: Float[ndarray, " bin"]
    low: Float[ndarray, " bin"]
    high: Float[ndarray, " bin"]


def reliability(
    confidence: Float[ndarray, " example"],
    correct: Bool[ndarray, " example"],
    *,
    num_bins: int = NUM_BINS,
) -> Reliability:
    """Mean confidence and accuracy in equal bins; empty bins have count 0 and NaN means."""
    which = _bin_of(confidence, num_bins)
    count = np.bincount(which, minlength=num_bins)
    hits = np.bincount(which, weights=correct, minlength=num_bins).astype(np.int64)
    total = np.bincount(which, weights=confidence, minlength=num_bins)
    empty = np.where(count > 0, 1.0, np.nan)
    safe = np.maximum(count, 1)
    intervals = [
        binomtest(k, n).proportion_ci(method="wilson") if n else (0.0, 1.0)
        for k, n in zip(hits.tolist(), count.tolist(), strict=True)
    ]
    low, high = np.array(intervals).T
    return Reliability(
        edges=np.linspace(0.0, 1.0, num_bins + 1),
        count=count,
        confidence=total / safe * empty,
        accuracy=hits / safe * empty,
        low=low,
        high=high,
    )


def _bin_of(confidence: Float[ndarray, " example"], num_bins: int) -> Int[ndarray, " example"]:
    # bins are (low, high], with edges rounded as the confidences are, as in `metrics.ece`
    edges = (np.arange(1, num_bins) / num_bins).astype(confidence.dtype)
    return np.searchsorted(edges, confidence, side="left")


def ece_of_a_calibrated_model(
    confidence: Float[ndarray, " example"],
    *,
    num_bins: int = NUM_BINS,
    num_draws: int = 200,
    quantile: float = 0.95,
) -> float:
    """The ECE that a perfectly calibrated model stays below in 95 of 100 test sets.

    The ECE of finitely many examples is never zero. Labels are drawn as if each confidence
    were the true probability of being right, and the ECE of each draw is taken, so that
    "calibrated" can mean: no worse than chance explains. The draws are always the same.
    """
    order = np.argsort(confidence, kind="stable")
    p = confidence[order].astype(np.float64)
    _, starts = np.unique(_bin_of(p, num_bins), return_index=True)
    generator = np.random.default_rng(0)
    draws = np.empty(num_draws)
    for i in range(num_draws):
        hit = generator.random(len(p)) < p
        # ECE = Σ_bins |Σ_i (hit_i − p_i)| / N
        draws[i] = np.abs(np.add.reduceat(hit - p, starts)).sum() / len(p)
    return float(np.quantile(draws, quantile))


def coverage_at_risk(curve: RiskCoverage, max_risk: float) -> float:
    """The largest coverage whose risk is at most `max_risk`; 0 where none is."""
    allowed = curve.risk <= max_risk
    return float(curve.coverage[allowed].max()) if bool(allowed.any()) else 0.0


def shares(confidence: Float[ndarray, " example"], *, num_bins: int = 25) -> Float[ndarray, " bin"]:
    """The share of the examples in each of `num_bins` equal bins of confidence."""
    count = np.bincount(_bin_of(confidence, num_bins), minlength=num_bins)
    return count / max(len(confidence), 1)
