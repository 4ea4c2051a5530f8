"""How long the work that is left may take, from what the same or similar work has cost."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kepsvgp.config.comparison import with_absolute_paths
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.paper.plan import Task
from kepsvgp.paper.published import published
from kepsvgp.paper.records import Left, RunState

Key = tuple[str, ...]


class Estimate(NamedTuple):
    """Seconds that are left, and how many pieces of work nothing is known about."""

    seconds: float
    unknown: int


class Costs:
    """Mean seconds of epochs and evaluations, by ever wider likeness of the runs.

    Only those are read that are like one of the `wanted`, by which nothing else is estimated.
    """

    def __init__(self, wanted: Iterable[RunConfig]) -> None:
        self._wanted = {_likeness(config)[-1] for config in wanted}
        self._totals: dict[Key, tuple[float, int]] = {}
        self._counted: dict[str, tuple[int, set[str]]] = {}

    def add(self, config: RunConfig, run: RunState) -> None:
        """Counts what a run's work has cost, but for what of it was counted before."""
        likenesses, name = _likeness(config), run.folder.path.name
        if likenesses[-1] not in self._wanted:
            return
        epochs, steps = self._counted.get(name, (0, set()))
        new: list[tuple[str, float]] = [
            ("epoch", float(entry["seconds"]) + float(entry.get("val_seconds", 0.0)))
            for entry in run.history[epochs:]
        ]
        new += [(step, t) for step, t in run.record.seconds.items() if step not in steps]
        self._counted[name] = len(run.history), set(run.record.seconds)
        for likeness in likenesses:
            for step, seconds in new:
                total, count = self._totals.get((*likeness, step), (0.0, 0))
                self._totals[*likeness, step] = total + seconds, count + 1

    def estimate(self, left: Iterable[tuple[Task, Left]], *, jobs: int = 1) -> Estimate:
        """Time for what is left, so many jobs at a time."""
        seconds, unknown = 0.0, 0
        for task, rest in left:
            work = [(each.key, 1) for each in rest.evaluations]
            if rest.epochs:
                work.append(("epoch", rest.epochs))
            likenesses = _likeness(task.config) if work else []
            for step, times in work:
                each = self._mean(likenesses, step)
                seconds += times * (each or 0.0)
                unknown += each is None
        return Estimate(seconds / max(1, jobs), unknown)

    def _mean(self, likenesses: Sequence[Key], step: str) -> float | None:
        """The mean cost of the most similar work there is; None if there is none."""
        for likeness in likenesses:
            if (*likeness, step) in self._totals:
                total, count = self._totals[*likeness, step]
                return total / count
        return None


def _likeness(config: RunConfig) -> list[Key]:
    """From the same run with another seed to any run of the method on the same data."""
    data = with_absolute_paths(config).data.model_dump_json(exclude={"root"})
    shape = config.model.model_dump_json(exclude={"svdkl": {"softmax_run"}})
    return [(data, config.method, shape), (data, config.method)]


# depth of the networks whose epochs the paper timed in table 4
_TIMED_DEPTH = {"cifar10": 5, "cifar100": 6, "imdb": 1, "cola": 2}


def paper_hours(tasks: Sequence[Task]) -> float | None:
    """Hours of training at the speed that the paper printed for a V100, in proportion to depth.

    None where it timed nothing like it. The first step of SV-DKL is a task of its own, and its
    second one is taken to be as fast.
    """
    times, seconds = published("table4"), 0.0
    for task in tasks:
        config, method = task.config, find_method(task.config.method)
        timed = times.get(config.data.name, {}).get(method.timed_as or config.method)
        if timed is None:
            return None
        share = config.model.depth / _TIMED_DEPTH[config.data.name]
        seconds += method.epochs(config) * share * timed["seconds_per_epoch"].mean
    return seconds / 3600
