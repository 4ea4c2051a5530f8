"""What an output root holds already: each run in it is read once, and again when a job ended.

    OUT/<run>/              run folders, named by `study.run_name`
    OUT/<run>/sweep.json    what was measured of the run, and how long each step took
    OUT/timings/<name>.json stopwatch measurements
    OUT/logs/<name>.log     what the process of a task wrote
    OUT/logs/<name>.failed  why it failed the last time; gone once it has succeeded
    OUT/tables/, figures/   what came out

Everything is decided from these files, so that a sweep that was killed, or another one that
shares its root, goes on where they end.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data.benchmark import Note, read_notes
from kepsvgp.data.sets import ood
from kepsvgp.errors import UserError
from kepsvgp.files import read_json, write_atomic, write_json
from kepsvgp.paper.findings import inspected
from kepsvgp.paper.plan import Evaluation, Task, Timing
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection

SWEEP_FILE = "sweep.json"


class Record(NamedTuple):
    """What a run remembers of the tasks that worked on it.

    Attributes:
        answered: The sets that each finished evaluation meant, by its key.
        seconds: Time of each step: `train`, `inspect`, and evaluations by their key.
        failed: Why an evaluation failed the last time.
        notes: What there was to say of the data at the last evaluation.
    """

    answered: dict[str, list[str]]
    seconds: dict[str, float]
    failed: dict[str, str]
    notes: tuple[Note, ...] = ()


def read_record(run: RunFolder) -> Record:
    """What the run remembers; nothing where no task has worked on it."""
    path = run.path / SWEEP_FILE
    if not path.exists():
        return Record({}, {}, {})
    found = read_json(path, *Record._fields)
    notes = read_notes(found["notes"])
    return Record(found["answered"], found["seconds"], found["failed"], notes)


def write_record(run: RunFolder, record: Record) -> None:
    """Replaces what the run remembers."""
    notes = [note._asdict() for note in record.notes]
    write_json(run.path / SWEEP_FILE, record._asdict() | {"notes": notes})


class RunState:
    """A run as it was found: each of its files is read when first needed, and once.

    What cannot be read is a `UserError` where it is needed.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)

    @cached_property
    def is_trained(self) -> bool:
        """Whether its training has come to its end."""
        return self.folder.is_finished()

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One entry for each finished epoch."""
        return self.folder.history() if self.folder.config_file.exists() else []

    @cached_property
    def record(self) -> Record:
        """What it remembers of the tasks that worked on it."""
        return read_record(self.folder)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """{checkpoint: {method: {split: {metric: value}}}}."""
        return self.folder.metrics()

    def has(self, evaluation: Evaluation, config: RunConfig) -> bool:
        """Whether every set that an evaluation means has its metrics and predictions.

        Sets of other data may have come since it was made.
        """
        names = self.record.answered.get(evaluation.key)
        if names is None:
            return False
        method, checkpoint, splits = evaluation
        if splits == "ood":
            names = {*names, *(f"ood/{name}" for name in ood.names_now(config.data))}
        measured = self.metrics.get(checkpoint, {}).get(method, {})
        return all(
            name in measured and self.folder.predictions_file(checkpoint, method, name).exists()
            for name in names
        )

    def inspection(self, checkpoint: str) -> Inspection | None:
        """What was seen in its attention layers; None if not of this checkpoint."""
        return inspected(self.folder, checkpoint)


class Left(NamedTuple):
    """What is left to do for a task."""

    epochs: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    inspection: bool = False


def left_of(task: Task, run: RunState) -> Left:
    """What is left to do for a task.

    All but the training, if the run cannot be read: its process will say what is wrong.
    """
    everything = Left(0, task.evaluations, task.inspected is not None)
    try:
        if not run.is_trained:
            # the last step after the last epoch may be missing
            epochs = max(1, find_method(task.config.method).epochs(task.config) - len(run.history))
            return everything._replace(epochs=epochs)
        missing = [each for each in task.evaluations if not run.has(each, task.config)]
        is_unseen = task.inspected is not None and run.inspection(task.inspected) is None
        return Left(0, tuple(missing), is_unseen)
    except UserError:
        return everything


class OutputRoot:
    """The folder that a sweep works in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[str, RunState] = {}

    def run(self, name: str) -> RunState:
        """A run as it was first found, or since a job ended that worked on it."""
        return self._runs.setdefault(name, RunState(self.path / name))

    def changed(self, name: str) -> None:
        """Forgets what was read of a run."""
        self._runs.pop(name, None)

    def run_names(self) -> Sequence[str]:
        """All runs that are here, planned or not."""
        return sorted(file.parent.name for file in self.path.glob("*/config.toml"))

    def timing_file(self, timing: Timing) -> Path:
        """Where a measurement is kept."""
        return self.path / "timings" / f"{timing.name}.json"

    def _failure_file(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.failed"

    def failure(self, name: str) -> str | None:
        """Why a job failed the last time it was tried; None if it did not."""
        path = self._failure_file(name)
        return path.read_text(encoding="utf-8").strip() if path.exists() else None

    def note_failure(self, name: str, reason: str | None) -> None:
        """Keeps why a job failed beside its log; None for one that succeeded."""
        path = self._failure_file(name)
        if reason is None:
            path.unlink(missing_ok=True)
        else:
            write_atomic(path, reason + "\n")
