"""What an output root holds already, what is left to do, and how long that may take.

    OUT/<run>/              run folders, named by `plan.run_name`
    OUT/<run>/sweep.json    what was asked of the run, and how long each step took
    OUT/timings/<name>.json stopwatch measurements
    OUT/logs/<name>.log     what the process of a task wrote
    OUT/logs/<name>.failed  why it failed the last time; gone once it has succeeded
    OUT/tables/, figures/   what came out

Everything is decided from these files, so that a sweep that was killed, or another one that
shares its root, goes on where they end.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kepsvgp.config.comparison import with_absolute_paths
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data.benchmark import Note, read_notes
from kepsvgp.data.sets import ood
from kepsvgp.errors import UserError
from kepsvgp.files import read_json, write_json
from kepsvgp.paper.findings import inspected
from kepsvgp.paper.plan import Ask, Task
from kepsvgp.paper.published import published
from kepsvgp.runs.folder import RunFolder

SWEEP_FILE = "sweep.json"


class Record(NamedTuple):
    """What a run remembers of the tasks that worked on it.

    Attributes:
        answered: The sets that each answered ask meant.
        seconds: Time of each step: `train`, `inspect`, and asks by their key.
        failed: Why an ask could not be answered the last time.
        notes: What there was to say of the data when the last ask was answered.
    """

    answered: dict[str, list[str]]
    seconds: dict[str, float]
    failed: dict[str, str]
    notes: tuple[Note, ...] | None = None


def ask_key(ask: Ask) -> str:
    """An ask as one word."""
    return "/".join(ask)


def read_record(run: RunFolder) -> Record:
    """What the run remembers; nothing where no task has worked on it."""
    path = run.path / SWEEP_FILE
    if not path.exists():
        return Record({}, {}, {})
    # older records have no notes
    found = read_json(path, "answered", "seconds", "failed")
    notes = found.get("notes")
    notes = None if notes is None else read_notes(notes)
    return Record(found["answered"], found["seconds"], found["failed"], notes)


def write_record(run: RunFolder, record: Record) -> None:
    """Replaces what the run remembers."""
    notes = None if record.notes is None else [note._asdict() for note in record.notes]
    write_json(run.path / SWEEP_FILE, record._asdict() | {"notes": notes})


def is_answered(run: RunFolder, ask: Ask, record: Record) -> bool:
    """Whether every set that an ask means has its metrics and predictions.

    Sets of other data may have come since it was answered.
    """
    names = record.answered.get(ask_key(ask))
    if names is None:
        return False
    if ask.splits == "ood":
        names = {*names, *(f"ood/{name}" for name in ood.names_now(run.config().data))}
    measured = run.metrics().get(ask.checkpoint, {}).get(ask.method, {})
    return all(
        name in measured and run.predictions_file(ask.checkpoint, ask.method, name).exists()
        for name in names
    )


def total_epochs(config: RunConfig) -> int:
    """Epochs of a run's own training."""
    return find_method(config.method).epochs(config)


class Left(NamedTuple):
    """What is left to do for a task."""

    epochs: int
    asks: tuple[Ask, ...]
    inspection: bool

    @property
    def is_nothing(self) -> bool:
        """Whether the task is done."""
        return self.epochs == 0 and not self.asks and not self.inspection


def left_of(task: Task, out: Path) -> Left:
    """What is left to do for a task in this output root.

    All of it, if the run cannot be read: its process will say what is wrong.
    """
    try:
        return _left_of(task, RunFolder(out / task.name))
    except UserError:
        return Left(0, task.asks, task.inspected is not None)


def _left_of(task: Task, run: RunFolder) -> Left:
    if not run.is_finished():
        done = len(run.history()) if run.config_file.exists() else 0
        # the last step after the last epoch may be missing
        epochs = max(1, total_epochs(task.config) - done)
        return Left(epochs, task.asks, task.inspected is not None)
    record = read_record(run)
    asks = tuple(ask for ask in task.asks if not is_answered(run, ask, record))
    is_unseen = task.inspected is not None and inspected(run, task.inspected) is None
    return Left(0, asks, is_unseen)


def failure(out: Path, name: str) -> str | None:
    """Why a task failed the last time it was tried; None if it did not."""
    path = out / "logs" / f"{name}.failed"
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


class History(NamedTuple):
    """What finished work has cost, by ever wider likeness."""

    epochs: dict[tuple[str, ...], list[float]]
    asks: dict[tuple[str, ...], list[float]]


def read_history(out: Path, known: Iterable[Task]) -> History:
    """Costs of everything in an output root that is comparable with these tasks."""
    history = History({}, {})
    names = {task.name for task in known}
    folders = sorted(out.iterdir()) if out.is_dir() else []
    for folder in folders:
        run = RunFolder(folder)
        if not run.config_file.exists():
            continue
        try:
            config, epochs, record = run.config(), run.history(), read_record(run)
        except UserError:
            if folder.name in names:
                raise
            # a run of another version is no reason to stop
            continue
        for entry in epochs:
            seconds = float(entry["seconds"]) + float(entry.get("val_seconds", 0.0))
            for key in _likeness(config):
                history.epochs.setdefault(key, []).append(seconds)
        for ask, seconds in record.seconds.items():
            for key in _likeness(config):
                history.asks.setdefault((*key, ask), []).append(seconds)
    return history


def _likeness(config: RunConfig) -> list[tuple[str, ...]]:
    """From the same run with another seed to any run of the method on the same data."""
    data = with_absolute_paths(config).data.model_dump_json(exclude={"root"})
    shape = config.model.model_dump_json(exclude={"svdkl": {"softmax_run"}})
    return [(data, config.method, shape), (data, config.method)]


class Estimate(NamedTuple):
    """Seconds that are left, and how many pieces of work nothing is known about."""

    seconds: float
    unknown: int


def estimate(tasks: Sequence[Task], out: Path, *, jobs: int = 1) -> Estimate:
    """Time left for tasks, from what the same or similar work has cost in this output root."""
    history = read_history(out, tasks)
    seconds, unknown = 0.0, 0
    for task in tasks:
        left = left_of(task, out)
        keys = _likeness(task.config)
        if left.epochs:
            each = _cost(history.epochs, keys)
            seconds += left.epochs * (each or 0.0)
            unknown += each is None
        for ask in left.asks:
            each = _cost(history.asks, [(*key, ask_key(ask)) for key in keys])
            seconds += each or 0.0
            unknown += each is None
    return Estimate(seconds / max(1, jobs), unknown)


# depth of the networks whose epochs the paper timed in table 4
_TIMED_DEPTH = {"cifar10": 5, "cifar100": 6, "imdb": 1, "cola": 2}


def paper_hours(tasks: Sequence[Task]) -> float | None:
    """Hours of training at the speed that the paper printed for a V100, in proportion to depth.

    None where it timed nothing like it. The first step of SV-DKL is a task of its own, and its
    second one is taken to be as fast.
    """
    times, seconds = published("table4"), 0.0
    for task in tasks:
        config = task.config
        row = find_method(config.method).timed_as or config.method
        timed = times.get(config.data.name, {}).get(row)
        if timed is None:
            return None
        share = config.model.depth / _TIMED_DEPTH[config.data.name]
        seconds += total_epochs(config) * share * timed["seconds_per_epoch"].mean
    return seconds / 3600


def _cost(known: dict[tuple[str, ...], list[float]], keys: Sequence[tuple[str, ...]]) -> Any:
    """The mean cost of the most similar work there is; None if there is none."""
    for key in keys:
        if known.get(key):
            return sum(known[key]) / len(known[key])
    return None
