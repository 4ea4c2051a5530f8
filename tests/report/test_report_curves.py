import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kepsvgp import metrics
from kepsvgp.report import curves


@st.composite
def answers(draw):
    """Confidences with many ties, and whether they were right."""
    size = draw(st.integers(1, 40))
    confidence = draw(arrays(np.float64, size, elements=st.sampled_from([0.2, 0.5, 0.7, 1.0])))
    return confidence, draw(arrays(np.bool_, size))


def test_reliability_bins_add_up_to_the_ece() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(7) * 0.4, 503).astype(np.float32)
    labels = generator.integers(0, 7, 503)

    bins = curves.reliability(probs.max(1), probs.argmax(1) == labels)

    filled = bins.count > 0
    gaps = np.abs(bins.confidence - bins.accuracy)[filled]
    ece = float((gaps * bins.count[filled]).sum() / 503)
    assert bins.count.sum() == 503
    # the bins hold means in float64 of float32 confidences
    assert ece == pytest.approx(metrics.ece(probs, labels), abs=1e-7)


def test_reliability_puts_edges_where_the_metric_does() -> None:
    confidence = np.array([0.2, 0.4, 1.0], dtype=np.float32)

    bins = curves.reliability(confidence, np.array([True, True, True]), num_bins=5)

    assert bins.count.tolist() == [1, 1, 0, 0, 1]
    assert np.isnan(bins.accuracy[2])
    assert (bins.low[2], bins.high[2]) == (0.0, 1.0)


@given(answers(), st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_coverage_at_risk_is_the_largest_allowed(case, risk) -> None:
    confidence, correct = case

    found = curves.coverage_at_risk(metrics.risk_coverage_curve(confidence, correct), risk)

    allowed = [0.0]
    for threshold in confidence:
        answered = confidence >= threshold
        if (~correct[answered]).mean() <= risk:
            allowed.append(answered.mean())
    assert found == max(allowed)


def test_ece_of_a_calibrated_model_bounds_most_calibrated_draws() -> None:
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.3, 1.0, 400)
    bound = curves.ece_of_a_calibrated_model(confidence)

    below = []
    for _ in range(400):
        bins = curves.reliability(confidence, generator.random(400) < confidence)
        gaps = np.nan_to_num(np.abs(bins.confidence - bins.accuracy))
        below.append((gaps * bins.count).sum() / 400 <= bound)

    # the bound is a quantile of 200 draws: its own error and that of 400 trials, 5 sd of both
    deviation = np.sqrt(0.95 * 0.05 * (1 / 200 + 1 / 400))
    assert abs(np.mean(below) - 0.95) < 5 * deviation


def test_shares_of_confidence_sum_to_one() -> None:
    shares = curves.shares(np.array([0.0, 0.39, 0.4, 1.0]), num_bins=5)

    assert shares.tolist() == [0.25, 0.5, 0.0, 0.0, 0.25]
