"""How long the work that is left may take, from what the same or similar work has cost."""

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean
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
        self._work: dict[str, tuple[list[Key], list[tuple[str, float]]]] = {}

    def add(self, config: RunConfig, run: RunState) -> None:
        """Notes what a run's work has cost, in place of what it had cost before."""
        likenesses = _likeness(config)
        if likenesses[-1] in self._wanted:
            epochs = [e["seconds"] + e.get("val_seconds", 0.0) for e in run.history]
            work = [*(("epoch", seconds) for seconds in epochs), *run.record.seconds.items()]
            self._work[run.folder.path.name] = likenesses, work

    def estimate(self, left: Iterable[tuple[Task, Left]], *, jobs: int = 1) -> Estimate:
        """Time for what is left, so many jobs at a time."""
        means, seconds, unknown = self._means(), 0.0, 0
        for task, rest in left:
            work = [(each.key, 1) for each in rest.evaluations]
            work += [("epoch", rest.epochs)] if rest.epochs else []
            likenesses = _likeness(task.config) if work else []
            for step, times in work:
                # by the most similar work there is
                found = (means.get((*likeness, step)) for likeness in likenesses)
                each = next((mean for mean in found if mean is not None), None)
                seconds += times * (each or 0.0)
                unknown += each is None
        return Estimate(seconds / max(1, jobs), unknown)

    def _means(self) -> dict[Key, float]:
        known: dict[Key, list[float]] = {}
        for likenesses, work in self._work.values():
            for likeness, (step, seconds) in product(likenesses, work):
                known.setdefault((*likeness, step), []).append(seconds)
        return {key: fmean(values) for key, values in known.items()}


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
