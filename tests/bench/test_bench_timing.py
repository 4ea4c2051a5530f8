from collections.abc import Callable

import pytest

from benchmarks.growth import allocations, exponent, peak_bytes
from benchmarks.timing import Limit, Options, Result, compare, contest


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


def test_quick_contenders_fill_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, {"quick": 0, "slow": 0}
    # a clock that only moves when a contender works
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def run(name: str, seconds: float) -> None:
        nonlocal now
        calls[name] += 1
        now += seconds

    contenders = {"quick": lambda: run("quick", 0.5), "slow": lambda: run("slow", 4.0)}
    results = compare(contenders, baseline="quick", rounds=2, turn=4.0, warmup=1)
    # a call to warm up and one to see how long it takes, then two turns
    assert calls == {"quick": 2 + 2 * 8, "slow": 2 + 2 * 1}
    assert results["slow"].seconds == (4.0, 4.0)
    assert results["slow"].ratio == 8.0


def test_ratios_refer_to_the_faster_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def taking(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds

        return run

    contenders = {"fused": taking(4.0), "plain": taking(2.0), "own": taking(3.0)}
    limits = (Limit("own", 1.0), Limit("fused", 2.0))
    found = contest("", contenders, Options(rounds=2), *limits, baselines=("fused", "plain"))
    assert found.baseline == "plain"
    assert found.results["own"].ratios == (1.5, 1.5)
    assert [limit["passed"] for limit in found.summary()["limits"]] == [False, True]


def test_exponent_of_a_power_law_is_its_power() -> None:
    sizes = (1.0, 2.0, 4.0, 8.0)
    assert exponent(sizes, tuple(3 * size**1.5 for size in sizes)) == pytest.approx(1.5)


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
