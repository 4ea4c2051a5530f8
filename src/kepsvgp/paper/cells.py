"""The numbers of a table, read back from the runs that were made for it.

A number that is not there has its reason beside it: a failed run, a missing data set, an
ensemble of one. Numbers are in raw units; only the output has the paper's.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kepsvgp.data.benchmark import Note, read_notes
from kepsvgp.errors import UserError
from kepsvgp.files import read_json
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import UndefinedMetricWarning, all_metrics, confidence_score, ood_metrics
from kepsvgp.paper.declarations import Column, Figure, Row, Table
from kepsvgp.paper.plan import Ask, Study, Task, row_task, rows_of
from kepsvgp.paper.published import Number, published
from kepsvgp.paper.records import ask_key, failure, read_record
from kepsvgp.paper.timing import Times, Timing, timing_of
from kepsvgp.runs.folder import RunFolder

T = TypeVar("T")


class Cell(NamedTuple):
    """A number of ours beside the paper's.

    Attributes:
        values: One for each seed; one alone for an ensemble or a time. Raw units.
        reasons: Why values are missing.
        published: What the paper printed, in its units.
    """

    values: tuple[float, ...]
    reasons: tuple[str, ...] = ()
    published: Number | None = None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None if there is nothing."""
        return fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None


class Scores(NamedTuple):
    """Probabilities for one set, one leading entry for each run, and the labels."""

    probs: Float[Tensor, "run example class"]
    labels: Int[Tensor, " example"]


class Missing(Exception):
    """A number that is not there, and why."""


class Reader:
    """Reads what the runs of a table or figure have to say.

    Args:
        exhibit: The table or figure.
        study: The data set, profile and seeds.
        out: The output root.
    """

    def __init__(self, exhibit: Table | Figure, study: Study, out: Path) -> None:
        self.exhibit, self.study, self.out = exhibit, study, out
        self._tasks: dict[tuple[str, int], Task] = {}

    def task(self, row: Row, seed: int) -> Task:
        """The task of a row and seed."""
        key = (row.key, seed)
        if key not in self._tasks:
            self._tasks[key] = row_task(self.exhibit, row, self.study, seed)
        return self._tasks[key]

    def run(self, row: Row, seed: int) -> RunFolder:
        """The finished run of a row and seed; `Missing` with the reason if it is not there."""
        task = self.task(row, seed)
        run = RunFolder(self.out / task.name)
        reason = failure(self.out, task.name)
        try:
            if run.is_finished():
                return run
        except UserError as error:
            reason = str(error)
        raise Missing(f"failed: {reason}" if reason else "not run yet")

    def answered(self, row: Row, seed: int, splits: str) -> list[str]:
        """The sets that were measured for a selector."""
        task, run = self.task(row, seed), self.run(row, seed)
        ask = Ask(row.method, self.study.checkpoint_of(task.config), splits)
        record = self._readable(lambda: read_record(run))
        if ask_key(ask) in record.answered:
            return record.answered[ask_key(ask)]
        reason = record.failed.get(ask_key(ask))
        raise Missing(f"failed: {reason}" if reason else "not evaluated yet")

    def metrics(self, row: Row, seed: int) -> Mapping[str, Mapping[str, float]]:
        """{set: {metric: value}} of a row and seed."""
        task, run = self.task(row, seed), self.run(row, seed)
        checkpoint = self.study.checkpoint_of(task.config)
        return self._readable(run.metrics).get(checkpoint, {}).get(row.method, {})

    def prediction(self, row: Row, seed: int, split: str) -> Prediction:
        """The saved prediction of a row and seed for a set."""
        task, run = self.task(row, seed), self.run(row, seed)
        checkpoint = self.study.checkpoint_of(task.config)
        file = run.predictions_file(checkpoint, row.method, split)
        return self._readable(lambda: Prediction.load(file, run=run.identity()))

    def _readable(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except UserError as error:
            raise Missing(f"failed: {error}") from None

    def scores(self, row: Row, split: str) -> Scores:
        """Probabilities of all seeds for a set; of their mean, for an ensemble."""
        each = [self.prediction(row, seed, split) for seed in range(self.study.seeds)]
        probs = torch.stack([prediction.probs for prediction in each])
        if row.is_ensemble:
            if len(each) < 2:
                raise Missing("an ensemble must have at least two seeds")
            # in the type of the others, so that a probability of zero costs the same
            probs = probs.double().mean(dim=0, keepdim=True).to(probs.dtype)
        labels = each[0].targets
        assert labels is not None
        return Scores(probs, labels)

    def notes(self) -> list[str]:
        """What the runs say about their data: reduced, generated, missing."""
        found: dict[Note, None] = {}
        for row in rows_of(self.exhibit, self.study.dataset):
            for seed in range(self.study.seeds):
                run = RunFolder(self.out / self.task(row, seed).name)
                if run.record_file.exists():
                    # of when it was measured; of when it was trained, for older records
                    then = read_record(run).notes
                    now = read_notes(run.record().get("notes", [])) if then is None else then
                    found |= dict.fromkeys(now)
        # what is said of sets that are not asked here is left out
        return [n.text for n in found if n.about is None or n.about in self.exhibit.needs]


def fill(table: Table, study: Study, out: Path) -> dict[tuple[str, str], Cell]:
    """Every cell of a table for one data set, by row and column."""
    reader = Reader(table, study, out)
    printed = published(table.name).get(study.dataset, {})
    columns = table.columns_for(study.dataset)
    times = read_times(reader) if table.is_timed else {}
    cells = {}
    for row in table.rows_for(study.dataset):
        measured, reasons = _measured(reader, row)
        for column in columns:
            number = printed.get(row.key, {}).get(column.key)
            if column.source == "time":
                cells[row.key, column.key] = _timed(times, row, column, number)
            else:
                cells[row.key, column.key] = _cell(measured, reasons, column, number)
    return cells


def _measured(reader: Reader, row: Row) -> tuple[list[dict[str, float]], list[str]]:
    """{column: value} for each seed, or for the one ensemble, and why some are missing."""
    if row.is_ensemble:
        try:
            with warnings.catch_warnings():
                # an undefined number is shown as such
                warnings.simplefilter("ignore", UndefinedMetricWarning)
                return [_ensemble_values(reader, row)], []
        except Missing as missing:
            return [], [str(missing)]
    found, reasons = [], []
    for seed in range(reader.study.seeds):
        try:
            found.append(_seed_values(reader, row, seed))
        except Missing as missing:
            reasons.append(f"seed {seed} {missing}")
    return found, reasons


def _seed_values(reader: Reader, row: Row, seed: int) -> dict[str, float]:
    measured = reader.metrics(row, seed)
    assert isinstance(reader.exhibit, Table)
    match reader.exhibit.source:
        case "ood":
            names = reader.answered(row, seed, "ood")
            return {
                f"{metric}/{name.removeprefix('ood/')}": value
                for name in names
                for metric, value in measured[name].items()
            }
        case "shift":
            return _mean([measured[name] for name in reader.answered(row, seed, "shift")])
        case split:
            return dict(measured[reader.answered(row, seed, split)[0]])


def _ensemble_values(reader: Reader, row: Row) -> dict[str, float]:
    def measured(split: str) -> dict[str, float]:
        scores = reader.scores(row, split)
        return all_metrics(scores.probs[0], scores.labels)

    assert isinstance(reader.exhibit, Table)
    match reader.exhibit.source:
        case "ood":
            familiar = confidence_score(reader.scores(row, "test").probs[0])
            values = {}
            for name in reader.answered(row, 0, "ood"):
                foreign = confidence_score(reader.scores(row, name).probs[0])
                for metric, value in ood_metrics(familiar, foreign, positive="in").items():
                    values[f"{metric}/{name.removeprefix('ood/')}"] = value
            return values
        case "shift":
            return _mean([measured(name) for name in reader.answered(row, 0, "shift")])
        case split:
            return measured(split)


def _mean(parts: list[Mapping[str, float]]) -> dict[str, float]:
    """Means over sets; undefined where a metric is undefined for one of them."""
    if not parts:
        raise Missing("there are no shifted sets")
    return {name: fmean(part[name] for part in parts) for name in parts[0]}


def _cell(
    measured: list[dict[str, float]], reasons: list[str], column: Column, number: Number | None
) -> Cell:
    values = [values[column.key] for values in measured if column.key in values]
    reasons = list(reasons)
    if len(values) < len(measured):
        what = column.foreign or column.metric
        reasons.append(f"{what} is not among the data")
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < len(values):
        reasons.append("undefined for these predictions")
    return Cell(tuple(defined), tuple(dict.fromkeys(reasons)), number)


def timing_for(table: Table, study: Study) -> Timing | None:
    """The stopwatch measurement that a table needs; None if it needs none."""
    if not table.is_timed:
        return None
    configs = {
        row.key: row_task(table, row, study, 0).config for row in table.rows_for(study.dataset)
    }
    return timing_of(configs)


def timing_file(out: Path, timing: Timing) -> Path:
    """Where a measurement is kept."""
    return out / "timings" / f"{timing.name}.json"


def read_times(reader: Reader) -> dict[str, Times] | str:
    """Times of each row, or why there are none."""
    assert isinstance(reader.exhibit, Table)
    timing = timing_for(reader.exhibit, reader.study)
    assert timing is not None
    path = timing_file(reader.out, timing)
    if path.exists():
        return {row: Times(**values) for row, values in read_json(path, "times")["times"].items()}
    reason = failure(reader.out, timing.name)
    return "not measured yet" if reason is None else f"failed: {reason}"


def seconds(times: Times, metric: str) -> list[float]:
    """What each round says about a metric of the stopwatch."""
    if metric == "forward_seconds":
        return times.forward
    return [each * times.steps_per_epoch for each in times.step]


def _timed(times: dict[str, Times] | str, row: Row, column: Column, number: Number | None) -> Cell:
    if isinstance(times, str):
        return Cell((), (times,), number)
    rounds = torch.tensor(seconds(times[row.key], column.metric))
    return Cell((float(rounds.median()),), (), number)
