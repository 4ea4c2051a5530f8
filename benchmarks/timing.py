"""Contenders take turns, so that whatever else the machine does slows all of them alike.

In a round every contender has one turn of equal length. The ratio of a contender to the
baseline is taken within each round; the median over rounds is reported, with the quartiles
as spread. Seconds are reported too, but they belong to the machine and its load.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Options:
    """How a measurement is to be run."""

    rounds: int = 15
    """Turns of each contender."""
    small: bool = False
    """Sizes that serve to try the programs out; their ratios mean nothing."""


class Measurement(Protocol):
    """What a suite yields."""

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """How long one contender took, in each round, for one call."""

    seconds: tuple[float, ...]
    ratios: tuple[float, ...]
    """Seconds divided by those of the baseline in the same round."""

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return float(np.median(self.ratios))

    def summary(self) -> dict[str, Any]:
        """Medians and quartiles, for the table and the JSON file."""
        return {
            "ratio": self.ratio,
            "ratio_quartiles": _quartiles(self.ratios),
            "seconds": float(np.median(self.seconds)),
            "seconds_quartiles": _quartiles(self.seconds),
            "seconds_best": min(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class Limit:
    """A ratio that a contender must keep."""

    contender: str
    must: float
    wish: float | None = None


@dataclass(frozen=True, slots=True)
class Contest:
    """What was compared, and how it ended."""

    name: str
    baseline: str
    results: Mapping[str, Result]
    limits: tuple[Limit, ...] = ()
    sizes: str = ""

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        limits = []
        for limit in self.limits:
            ratio = self.results[limit.contender].ratio
            limits.append({"ratio": ratio, "passed": ratio <= limit.must, **asdict(limit)})
        return {
            "name": self.name,
            "sizes": self.sizes,
            "baseline": self.baseline,
            "rounds": len(self.results[self.baseline].seconds),
            "contenders": {name: result.summary() for name, result in self.results.items()},
            "limits": limits,
        }


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers by name, where there are no contenders to compare."""

    name: str
    values: Mapping[str, float]
    must: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """What some of them must not exceed, and what is wished for."""

    def summary(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {"name": self.name, "values": dict(self.values), "must": dict(self.must)}


def compare(
    contenders: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    rounds: int = 15,
    turn: float = 0.1,
    warmup: int = 2,
) -> dict[str, Result]:
    """Times all contenders, in turns.

    Args:
        contenders: What to call, by name.
        baseline: The contender that the ratios refer to.
        rounds: Number of turns each contender has.
        turn: Least length of a turn in seconds; quick contenders are called several times.
        warmup: Untimed calls of each contender before the first round.
    """
    calls = {}
    for name, run in contenders.items():
        for _ in range(warmup):
            run()
        calls[name] = max(1, round(turn / max(_seconds(run, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with _no_garbage_collection():
        for _ in range(rounds):
            for name, run in contenders.items():
                seconds[name].append(_seconds(run, calls[name]))
    return _results(seconds, baseline)


def contest(
    name: str,
    contenders: Mapping[str, Callable[[], object]],
    options: Options,
    *limits: Limit,
    baselines: tuple[str, ...],
    sizes: str = "",
    warmup: int = 2,
) -> Contest:
    """All contenders against the fastest of the baselines."""
    results = compare(contenders, baseline=baselines[0], rounds=options.rounds, warmup=warmup)
    fastest = min(baselines, key=lambda each: float(np.median(results[each].seconds)))
    seconds = {each: result.seconds for each, result in results.items()}
    return Contest(name, fastest, _results(seconds, fastest), limits, sizes)


def _results(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Result]:
    reference = seconds[baseline]
    return {
        name: Result(tuple(own), tuple(a / b for a, b in zip(own, reference, strict=True)))
        for name, own in seconds.items()
    }


def _seconds(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _quartiles(values: tuple[float, ...]) -> list[float]:
    return [float(value) for value in np.quantile(values, [0.25, 0.75])]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
