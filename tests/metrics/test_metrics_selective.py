import math

import pytest
import reference_metrics as reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError
from kepsvgp.metrics.selective import risk_bound

REPEATS = 500


def test_risk_coverage_curve_equals_hand_values() -> None:
    confidence = torch.tensor([0.6, 0.9, 0.7, 0.7], dtype=torch.float64)
    correct = torch.tensor([False, True, False, True])
    curve = metrics.risk_coverage_curve(confidence, correct)
    assert_close(curve.threshold, torch.tensor([0.9, 0.7, 0.6], dtype=torch.float64))
    assert_close(curve.coverage, torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64))
    assert_close(curve.risk, torch.tensor([0, 1 / 3, 1 / 2], dtype=torch.float64))


def test_risk_coverage_curve_without_ties_averages_to_aurc(generator: torch.Generator) -> None:
    confidence = torch.rand(101, generator=generator, dtype=torch.float64)
    correct = torch.rand(101, generator=generator) < 0.7
    curve = metrics.risk_coverage_curve(confidence, correct)
    assert float(curve.risk.mean()) == pytest.approx(metrics.aurc(confidence, correct), abs=1e-12)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 20))
def test_threshold_for_coverage_is_the_highest_that_suffices(levels, twentieths) -> None:
    confidence, wanted = torch.tensor(levels).float() / 5, twentieths / 20
    threshold, coverage = metrics.threshold_for_coverage(confidence, wanted)
    accepted = (confidence >= threshold).double().mean()
    assert float(accepted) == pytest.approx(coverage)
    assert accepted >= wanted
    higher = (confidence > threshold).double().mean()
    assert higher < wanted or wanted == 0


@pytest.mark.parametrize(("errors", "size"), [(0, 1), (0, 10), (3, 17), (16, 17), (40, 1000)])
def test_risk_bound_inverts_the_binomial_tail(errors: int, size: int) -> None:
    bound = risk_bound(errors, size, 0.01)
    assert reference.binomial_tail(errors, size, bound) == pytest.approx(0.01)
    assert bound > errors / size


def test_risk_bound_of_errors_only_is_one() -> None:
    assert risk_bound(5, 5, 0.1) == 1.0


def draw_informative(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Confidence c ~ U(0, 1), wrong with probability (1 − c)/2: risk above t is (1 − t)/4."""
    confidence = torch.rand(4000, generator=generator, dtype=torch.float64)
    wrong = torch.rand(4000, generator=generator, dtype=torch.float64) < (1 - confidence) / 2
    return confidence, ~wrong


def most_violations(delta: float) -> int:
    """More than this many of the repeats happen once in a thousand where the promise is kept."""
    return int(binom.ppf(0.999, REPEATS, delta))


def test_threshold_for_risk_keeps_its_promise_in_simulation(generator: torch.Generator) -> None:
    risk, delta = 0.1, 0.1
    violations = naive_violations = 0
    coverages = []
    for _ in range(REPEATS):
        confidence, correct = draw_informative(generator)
        chosen = metrics.threshold_for_risk(confidence, correct, risk, delta=delta)
        assert chosen.risk <= chosen.bound <= risk
        violations += (1 - chosen.threshold) / 4 > risk
        coverages.append(chosen.coverage)
        # the same with the risk seen at calibration in place of its bound
        curve = metrics.risk_coverage_curve(confidence, correct)
        naive = curve.threshold[(curve.risk <= risk).nonzero().max()]
        naive_violations += bool((1 - naive) / 4 > risk)
    assert violations <= most_violations(delta)
    assert naive_violations > most_violations(delta)
    # it is not kept by accepting nothing: half of the 0.4 that could be accepted at all
    assert sum(coverages) / REPEATS > 0.2


def test_threshold_for_risk_keeps_its_promise_where_every_threshold_breaks_it(
    generator: torch.Generator,
) -> None:
    # confidence says nothing and the risk is just too high: accepting anything is a violation
    risk, delta = 0.2, 0.1
    violations = uncorrected = 0
    for _ in range(REPEATS):
        confidence = torch.rand(300, generator=generator, dtype=torch.float64)
        correct = torch.rand(300, generator=generator) >= risk + 1e-6
        violations += (
            metrics.threshold_for_risk(confidence, correct, risk, delta=delta).coverage > 0
        )
        # ⌈log₂ 301⌉ = 9 thresholds are tried: this undoes the correction for that
        loose = metrics.threshold_for_risk(confidence, correct, risk, delta=9 * delta)
        uncorrected += loose.coverage > 0
    assert violations <= most_violations(delta)
    # without the correction for the search the test would notice
    assert uncorrected > most_violations(delta)


def test_threshold_for_risk_accepts_all_or_nothing_where_it_can() -> None:
    confidence = torch.linspace(0, 1, 200)
    everything = metrics.threshold_for_risk(confidence, torch.ones(200, dtype=torch.bool), 0.1)
    assert (everything.coverage, everything.threshold) == (1.0, 0.0)
    nothing = metrics.threshold_for_risk(confidence, torch.zeros(200, dtype=torch.bool), 0.1)
    assert (nothing.coverage, nothing.threshold) == (0.0, math.inf)
    assert not (confidence >= nothing.threshold).any()


def test_threshold_for_risk_accepts_tied_examples_together() -> None:
    confidence = torch.tensor([0.9] * 100 + [0.5] * 100)
    correct = torch.tensor([True] * 100 + [True, False] * 50)
    chosen = metrics.threshold_for_risk(confidence, correct, 0.1)
    assert chosen.threshold == pytest.approx(0.9)
    assert chosen.coverage == 0.5


@pytest.mark.parametrize("coverage", [-0.1, 1.1])
def test_selective_prediction_refuses_impossible_wishes(coverage: float) -> None:
    confidence, correct = torch.ones(2), torch.tensor([True, False])
    with pytest.raises(UserError, match="coverage must lie in"):
        metrics.threshold_for_coverage(confidence, coverage)
    with pytest.raises(UserError, match="risk and delta must lie in"):
        metrics.threshold_for_risk(confidence, correct, coverage)
