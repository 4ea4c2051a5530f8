import pytest

from kepsvgp.bench.growth import Growth, allocations, exponent, peak_bytes
from kepsvgp.bench.timing import Contest, Limit, Result, compare
from kepsvgp.errors import UserError


def test_ratio_is_the_median_of_ratios_within_rounds() -> None:
    # the second round was disturbed for both, and its ratio is like the others
    slow, fast = (2.0, 20.0, 2.2), (1.0, 10.0, 1.0)
    result = Result(slow, tuple(a / b for a, b in zip(slow, fast, strict=True)))
    assert result.ratio == 2.0
    assert result.summary()["seconds_best"] == 2.0


def test_contenders_take_turns() -> None:
    order = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    results = compare(contenders, baseline="a", rounds=3, turn=0.0, warmup=0)
    # one call each to see how long it takes, then three rounds
    assert "".join(order) == "ab" + "ab" * 3
    assert results["a"].ratios == (1.0, 1.0, 1.0)


class Clock:
    """A clock that only moves when a contender works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_slower_contender_has_the_larger_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    contenders = {"quick": lambda: clock.work(0.25), "slow": lambda: clock.work(2.0)}
    results = compare(contenders, baseline="quick", rounds=3, turn=0.0)
    assert results["slow"].ratio == 8.0
    assert results["slow"].seconds == (2.0, 2.0, 2.0)


def test_quick_contenders_fill_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = {"short": 0, "long": 0}

    def run(name: str, seconds: float) -> None:
        calls[name] += 1
        clock.work(seconds)

    contenders = {"short": lambda: run("short", 0.5), "long": lambda: run("long", 4.0)}
    compare(contenders, baseline="long", rounds=2, turn=4.0, warmup=1)
    # a call to warm up and one to see how long it takes, then two turns
    assert calls == {"short": 2 + 2 * 8, "long": 2 + 2 * 1}


def test_unknown_baseline_is_refused() -> None:
    with pytest.raises(UserError, match="baseline must be one of a; got 'b'"):
        compare({"a": lambda: None}, baseline="b")


@pytest.mark.parametrize(
    ("ratio", "at_least", "passed"),
    [(0.7, False, True), (0.9, False, False), (0.7, True, False), (0.9, True, True)],
)
def test_limit_is_kept_from_the_right_side(ratio: float, at_least: bool, passed: bool) -> None:
    results = {"a": Result((1.0,), (1.0,)), "b": Result((ratio,), (ratio,))}
    contest = Contest("name", "a", results, Limit("b", 0.8, at_least=at_least))
    assert contest.passed is passed
    assert contest.summary()["limit"]["passed"] is passed


def test_exponent_of_a_power_law_is_its_power() -> None:
    sizes = (1.0, 2.0, 4.0, 8.0)
    assert exponent(sizes, tuple(3 * size**1.5 for size in sizes)) == pytest.approx(1.5)


def test_growth_fails_when_either_exponent_is_too_large() -> None:
    linear, quadratic = (1.0, 2.0, 4.0), (1, 4, 16)
    assert Growth("", (1, 2, 4), linear, (1, 2, 4), must=1.1).passed
    assert not Growth("", (1, 2, 4), linear, quadratic, must=1.1).passed


def test_peak_counts_what_is_held_at_once() -> None:
    import torch

    def one_after_another() -> None:
        for _ in range(3):
            torch.zeros(1000)

    def together() -> None:
        _ = [torch.zeros(1000) for _ in range(3)]

    assert peak_bytes(one_after_another) == 4000
    assert peak_bytes(together) == 12_000
    assert sum(allocations(together)) == 0
