import math

import jaxtyping
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError
from kepsvgp.metrics import UndefinedMetricWarning, bootstrap

SIZE, NUM_CLASSES = 60, 4


def draw(generator: torch.Generator, size: int = SIZE, *, runs: int = 1) -> Tensor:
    """Probabilities rounded to eighths, so that there are ties."""
    counts = (
        torch.randint(8, (runs, size, NUM_CLASSES), generator=generator) + torch.eye(NUM_CLASSES)[0]
    )
    return (counts / counts.sum(-1, keepdim=True)).double()


@pytest.fixture
def case(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.randint(NUM_CLASSES, (SIZE,), generator=generator)
    return draw(generator)[0], draw(generator)[0], labels


def test_bootstrap_difference_is_that_of_all_metrics(case) -> None:
    a, b, labels = case
    intervals = metrics.paired_bootstrap(a, b, labels, num_resamples=50)
    ours, theirs = metrics.all_metrics(a, labels), metrics.all_metrics(b, labels)
    assert set(intervals) == set(ours)
    for name, interval in intervals.items():
        assert interval.difference == pytest.approx(ours[name] - theirs[name], abs=1e-12)
        assert interval.low <= interval.high


def test_bootstrap_of_parts_measures_and_resamples_each_by_itself(case) -> None:
    a, b, labels = case
    sizes = (40, 20)
    found = metrics.paired_bootstrap(a, b, labels, parts=sizes, num_resamples=50)
    for name, interval in found.items():
        expected = 0.0
        for rows in (slice(0, 40), slice(40, 60)):
            ours, theirs = (metrics.all_metrics(side[rows], labels[rows]) for side in (a, b))
            expected += len(labels[rows]) / SIZE * (ours[name] - theirs[name])
        assert interval.difference == pytest.approx(expected, abs=1e-12)
    # means over examples do not care, orders do
    whole = metrics.paired_bootstrap(a, b, labels, num_resamples=50)
    assert found["nll"].difference == pytest.approx(whole["nll"].difference)
    assert found["aurc"].difference != pytest.approx(whole["aurc"].difference)
    # a part keeps its size: where each part is all A's or all B's, nothing is left to chance
    right = torch.tensor([[1.0, 0, 0, 0]]).expand(SIZE, -1)
    wrong, zeros = right.flip(-1), torch.zeros(SIZE).long()
    mixed = torch.cat([right[:40], wrong[40:]])
    for parts, (low, high) in {sizes: (-1 / 3, -1 / 3), None: (-0.45, -0.21)}.items():
        accuracy = metrics.paired_bootstrap(
            mixed, right, zeros, metrics=["accuracy"], parts=parts, num_resamples=200
        )["accuracy"]
        assert accuracy.difference == pytest.approx(-1 / 3)
        assert accuracy.low == pytest.approx(low, abs=0.04)
        assert accuracy.high == pytest.approx(high, abs=0.04)


@pytest.mark.parametrize("parts", [(), (60, 0), (30, 20)])
def test_bootstrap_refuses_parts_that_are_not_all_examples(case, parts) -> None:
    with pytest.raises(UserError, match="add up to 60"):
        metrics.paired_bootstrap(*case, parts=parts)


def test_weighted_metrics_equal_metrics_of_repeated_examples(case, generator) -> None:
    probs, _, labels = case
    weights = torch.randint(3, (5, SIZE), generator=generator).double()
    statistic = bootstrap._run_statistic(metrics.outcome(probs, labels), bootstrap.NAMES)
    actual = statistic(weights)
    for r, row in enumerate(weights.long()):
        expected = metrics.all_metrics(
            probs.repeat_interleave(row, dim=0), labels.repeat_interleave(row)
        )
        assert {k: float(v[r]) for k, v in actual.items()} == pytest.approx(expected, abs=1e-12)


def test_bootstrap_repeats_with_its_seed_and_whatever_the_chunk(case, monkeypatch) -> None:
    a, b, labels = case
    first = metrics.paired_bootstrap(a, b, labels, num_resamples=30, seed=5)
    assert metrics.paired_bootstrap(a, b, labels, num_resamples=30, seed=5) == first
    assert metrics.paired_bootstrap(a, b, labels, num_resamples=30, seed=6) != first
    monkeypatch.setattr(bootstrap, "_CHUNK", 7 * SIZE)
    chunked = metrics.paired_bootstrap(a, b, labels, num_resamples=30, seed=5)
    for name, interval in chunked.items():
        assert interval == pytest.approx(first[name], abs=1e-12)


def test_bootstrap_of_several_runs_compares_their_means(generator) -> None:
    labels = torch.randint(NUM_CLASSES, (SIZE,), generator=generator)
    a, b = draw(generator, runs=3), draw(generator, runs=2)
    intervals = metrics.paired_bootstrap(a, b, labels, num_resamples=5)
    for name, interval in intervals.items():
        means = [
            sum(metrics.all_metrics(run, labels)[name] for run in runs) / len(runs)
            for runs in (a, b)
        ]
        assert interval.difference == pytest.approx(means[0] - means[1], abs=1e-12)


def test_bootstrap_of_a_mean_matches_the_normal_approximation(generator) -> None:
    size = 2000
    labels = torch.randint(NUM_CLASSES, (size,), generator=generator)
    a, b = draw(generator, size)[0], draw(generator, size)[0]
    found = metrics.paired_bootstrap(a, b, labels, metrics=["brier"], num_resamples=4000)["brier"]
    one_hot = torch.nn.functional.one_hot(labels, NUM_CLASSES)
    each = (a - one_hot).square().sum(-1) - (b - one_hot).square().sum(-1)
    error = float(each.std()) / math.sqrt(size)
    # a quantile at 2.5 % of 4000 has a standard error of 0.042 standard deviations
    assert found.low == pytest.approx(found.difference - 1.96 * error, abs=5 * 0.042 * error)
    assert found.high == pytest.approx(found.difference + 1.96 * error, abs=5 * 0.042 * error)


def test_interval_of_ece_is_one_for_test_sets_of_its_size(generator) -> None:
    """As its page says: not for the population, whose calibrated model has no ECE at all."""

    def two_models(size: int) -> tuple[Tensor, Tensor, Tensor]:
        logits = 2 * torch.randn(size, 10, generator=generator)
        labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        return logits.softmax(-1), (1.5 * logits).softmax(-1), labels

    def difference(size: int) -> float:
        a, b, labels = two_models(size)
        return metrics.paired_bootstrap(a, b, labels, metrics=["ece"], num_resamples=1)["ece"][0]

    of_this_size = sum(difference(300) for _ in range(300)) / 300
    of_all = difference(200_000)
    found = [
        metrics.paired_bootstrap(*two_models(300), metrics=["ece"], num_resamples=200)["ece"]
        for _ in range(100)
    ]
    assert sum(each.low <= of_this_size <= each.high for each in found) >= 90
    assert sum(each.low <= of_all <= each.high for each in found) <= 20


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("runs", [(1, 1), (5, 5), (5, 1), (3, 5)])
def test_bootstrap_interval_holds_what_other_seeds_and_examples_give(
    generator, spread, runs
) -> None:
    repeats, size, held = 200, 400, 0
    for _ in range(repeats):
        difficulty = torch.rand(size, generator=generator)
        # a run is right where an example is easier than its skill, on average 0.75 and 0.7
        skills = [
            mean + (spread if n > 1 else 0) * (torch.rand(n, 1, generator=generator) - 0.5)
            for mean, n in zip((0.75, 0.7), runs, strict=True)
        ]
        right = [difficulty < skill for skill in skills]
        a, b = (torch.stack([r, ~r], dim=-1).double() for r in right)
        interval = metrics.paired_bootstrap(
            a, b, torch.zeros(size).long(), metrics=["accuracy"], num_resamples=300
        )["accuracy"]
        held += interval.low <= 0.05 <= interval.high
    # fewer happen once in a thousand at the level of 95 %
    assert held >= binom.ppf(0.001, repeats, 0.95)
    # and so do more for single runs; for several they may, as t covers the least sure
    assert runs != (1, 1) or held <= binom.ppf(0.999, repeats, 0.95)


def test_bootstrap_of_undefined_metrics_is_nan_with_one_warning() -> None:
    probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 0, 1])
    with pytest.warns(UndefinedMetricWarning) as caught:
        intervals = metrics.paired_bootstrap(probs, probs, labels, num_resamples=10)
    assert len(caught) == 1
    assert all(math.isnan(value) for value in intervals["auroc"])
    assert intervals["accuracy"] == (0.0, 0.0, 0.0)


def test_bootstrap_ood_resamples_both_sets_separately(generator) -> None:
    familiar = torch.randint(5, (2, 11), generator=generator).double()
    foreign = torch.randint(3, 8, (2, 7), generator=generator).double()
    found = metrics.paired_bootstrap_ood(
        familiar[0], foreign[0], familiar[1], foreign[1], positive="in", num_resamples=400
    )
    ours, theirs = (metrics.ood_metrics(familiar[i], foreign[i], positive="in") for i in (0, 1))
    for name, interval in found.items():
        assert interval.difference == pytest.approx(ours[name] - theirs[name], abs=1e-12)
    # both sets keep their sizes in every resample
    weights = bootstrap._resample(50, (11, 7), generator)
    assert_close(weights[:, :11].sum(1), torch.full((50,), 11.0).double())
    assert_close(weights[:, 11:].sum(1), torch.full((50,), 7.0).double())


def test_bootstrap_ood_takes_the_mean_over_runs(generator) -> None:
    familiar = torch.randint(5, (5, 11), generator=generator).double()
    foreign = torch.randint(3, 8, (5, 7), generator=generator).double()
    found = metrics.paired_bootstrap_ood(
        familiar[:3], foreign[:3], familiar[3:], foreign[3:], positive="out", num_resamples=50
    )
    values = [
        metrics.ood_metrics(f, o, positive="out") for f, o in zip(familiar, foreign, strict=True)
    ]
    for name, interval in found.items():
        ours, theirs = ([v[name] for v in part] for part in (values[:3], values[3:]))
        expected = sum(ours) / 3 - sum(theirs) / 2
        assert interval.difference == pytest.approx(expected, abs=1e-12)
        assert interval.low <= interval.high


@pytest.mark.parametrize(("familiar", "foreign"), [(5, 7), (12, 7), (11, 6), (7, 11)])
def test_bootstrap_ood_refuses_sets_that_are_not_paired(monkeypatch, familiar, foreign) -> None:
    # a person's program has no type checker
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    scores = torch.arange(20.0)
    with pytest.raises(UserError, match=f"11 and 7 for A, {familiar} and {foreign} for B"):
        metrics.paired_bootstrap_ood(
            scores[:11], scores[:7], scores[:familiar], scores[:foreign], positive="in"
        )
    with pytest.raises(UserError, match="at least one of each"):
        metrics.paired_bootstrap_ood(*[scores[:0]] * 4, positive="in")


def test_bootstrap_refuses_unknown_metrics(case) -> None:
    a, b, labels = case
    with pytest.raises(UserError, match="metrics must be among accuracy"):
        metrics.paired_bootstrap(a, b, labels, metrics=["f1"])
