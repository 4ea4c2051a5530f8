"""The numbers of a table, read back from the runs that were made for it.

A number that is not there has its reason beside it: a failed run, a missing data set, an
ensemble of one. Numbers are in raw units; only the output has the paper's.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.files import read_json
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import UndefinedMetricWarning, all_metrics, confidence_score, ood_metrics
from kepsvgp.metrics.registry import OOD_SCORES
from kepsvgp.paper.declarations import MethodRow, MetricColumn, PaperTable
from kepsvgp.paper.plan import Evaluation, PlannedExhibit
from kepsvgp.paper.published import Number, published
from kepsvgp.paper.records import OutputRoot, RunState
from kepsvgp.paper.timing import Times

T = TypeVar("T")


class Reason(NamedTuple):
    """Why a number is missing: something failed, was not done, or cannot be."""

    kind: Literal["failed", "not done", "undefined"]
    text: str

    @classmethod
    def of_failure(cls, why: object) -> "Reason":
        """Something failed, and why."""
        return cls("failed", f"failed: {why}")


UNDEFINED = Reason("undefined", "undefined for these predictions")


class Missing(Exception):
    """A number that is not there."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class NumberCell(NamedTuple):
    """A number of ours beside the paper's.

    Attributes:
        values: One for each seed; one alone for an ensemble or a time. Raw units.
        reasons: Why values are missing.
        published: What the paper printed, in its units.
    """

    values: tuple[float, ...]
    reasons: tuple[Reason, ...] = ()
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
    """Probabilities for one set, one leading entry for each run, and the targets."""

    probs: Float[Tensor, "run example class"]
    targets: Int[Tensor, " example"]


class Reader:
    """Reads what the runs of a table or figure have to say; `Missing` is raised for what is not."""

    def __init__(self, planned: PlannedExhibit, root: OutputRoot) -> None:
        self.planned, self.root = planned, root

    def run(self, row: MethodRow, seed: int) -> RunState:
        """The finished run of a row and seed."""
        name = self.planned.tasks[row.key, seed].name
        run = self.root.run(name)
        if _readable(lambda: run.is_trained):
            return run
        why = self.root.failure(name)
        raise Missing(Reason("not done", "not run yet") if why is None else Reason.of_failure(why))

    def checkpoint(self, row: MethodRow, seed: int) -> str:
        """The weights that are measured."""
        return self.planned.study.checkpoint_of(self.planned.tasks[row.key, seed].config)

    def splits(self, row: MethodRow, seed: int, selector: str) -> list[str]:
        """The sets that were measured for a selector."""
        run = self.run(row, seed)
        key = Evaluation(row.method, self.checkpoint(row, seed), selector).key
        record = _readable(lambda: run.record)
        if key in record.answered:
            return record.answered[key]
        why = record.failed.get(key)
        not_yet = Reason("not done", "not evaluated yet")
        raise Missing(not_yet if why is None else Reason.of_failure(why))

    def metrics(self, row: MethodRow, seed: int) -> Mapping[str, Mapping[str, float]]:
        """{set: {metric: value}} of a row and seed."""
        run = self.run(row, seed)
        found = _readable(lambda: run.metrics)
        return found.get(self.checkpoint(row, seed), {}).get(row.method, {})

    def prediction(self, row: MethodRow, seed: int, split: str) -> Prediction:
        """The saved prediction of a row and seed for a set."""
        run = self.run(row, seed).folder
        place = self.checkpoint(row, seed), row.method, split
        return _readable(lambda: run.prediction(*place))

    def scores(self, row: MethodRow, split: str) -> Scores:
        """Probabilities of all seeds for a set; of their mean, for an ensemble."""
        each = [self.prediction(row, seed, split) for seed in self.planned.seeds]
        probs = torch.stack([prediction.probs for prediction in each])
        if row.is_ensemble:
            if len(each) < 2:
                raise Missing(Reason("undefined", "an ensemble must have at least two seeds"))
            # in the type of the others, so that a probability of zero costs the same
            probs = probs.double().mean(dim=0, keepdim=True).to(probs.dtype)
        targets = each[0].targets
        assert targets is not None
        return Scores(probs, targets)

    def times(self) -> dict[str, Times]:
        """What the stopwatch said of each row."""
        timing = self.planned.timing
        assert timing is not None
        path = self.root.timing_file(timing)
        if path.exists():
            found = read_json(path, "times")["times"]
            return {row: Times(**values) for row, values in found.items()}
        why = self.root.failure(timing.name)
        not_yet = Reason("not done", "not measured yet")
        raise Missing(not_yet if why is None else Reason.of_failure(why))


def _readable(read: Callable[[], T]) -> T:
    try:
        return read()
    except UserError as error:
        raise Missing(Reason.of_failure(error)) from None


def fill(table: PaperTable, reader: Reader) -> dict[tuple[str, str], NumberCell]:
    """Every cell of a table for one data set, by row and column."""
    dataset = reader.planned.study.dataset
    printed = published(table.numbers or table.name).get(dataset, {})
    columns = table.columns_for(dataset)
    times = _times(reader) if table.is_timed else {}
    cells = {}
    for row in reader.planned.rows:
        measured, reasons = _measured(table, reader, row)
        for column in columns:
            cell = (
                _timed(times, row, column)
                if column.source == "time"
                else _cell(measured, reasons, column)
            )
            number = printed.get(row.key, {}).get(column.key)
            cells[row.key, column.key] = cell._replace(published=number)
    return cells


def _measured(
    table: PaperTable, reader: Reader, row: MethodRow
) -> tuple[list[dict[str, float]], list[Reason]]:
    """{column: value} for each seed, or for the one ensemble, and why some are missing."""
    if row.is_ensemble:
        try:
            with warnings.catch_warnings():
                # an undefined number is shown as such
                warnings.simplefilter("ignore", UndefinedMetricWarning)
                return [_ensemble_values(table, reader, row)], []
        except Missing as missing:
            return [], [missing.reason]
    found, reasons = [], []
    for seed in reader.planned.seeds:
        try:
            found.append(_seed_values(table, reader, row, seed))
        except Missing as missing:
            kind, text = missing.reason
            reasons.append(Reason(kind, f"seed {seed} {text}"))
    return found, reasons


def _seed_values(table: PaperTable, reader: Reader, row: MethodRow, seed: int) -> dict[str, float]:
    measured, names = reader.metrics(row, seed), reader.splits(row, seed, table.source)
    if row.score:
        measured = {name: _by_score(measured[name], row.score) for name in names}
    return _columns_of(table, {name: measured[name] for name in names})


def _by_score(values: Mapping[str, float], score: str) -> dict[str, float]:
    """The metrics of a set of other data by another score than the confidence."""
    end = f"_{score}"
    found = {n.removesuffix(end): value for n, value in values.items() if n.endswith(end)}
    if not found:
        raise Missing(Reason("not done", f"{OOD_SCORES[score]} not measured: evaluate again"))
    return found


def _ensemble_values(table: PaperTable, reader: Reader, row: MethodRow) -> dict[str, float]:
    def measure(name: str) -> dict[str, float]:
        probs, targets = reader.scores(row, name)
        if table.source != "ood":
            return all_metrics(probs[0], targets)
        familiar = reader.scores(row, "test").probs[0]
        return ood_metrics(confidence_score(familiar), confidence_score(probs[0]), positive="in")

    return _columns_of(table, {n: measure(n) for n in reader.splits(row, 0, table.source)})


def _columns_of(table: PaperTable, measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{column: value} from {set: {metric: value}}: by set for other data, else means over sets."""
    if table.source == "ood":
        return {
            f"{metric}/{name.removeprefix('ood/')}": value
            for name, values in measured.items()
            for metric, value in values.items()
        }
    parts = list(measured.values())
    if not parts:
        raise Missing(Reason("undefined", "there are no shifted sets"))
    # undefined where a metric is undefined for one of the sets
    return {name: fmean(part[name] for part in parts) for name in parts[0]}


def _cell(
    measured: list[dict[str, float]], reasons: list[Reason], column: MetricColumn
) -> NumberCell:
    values = [values[column.key] for values in measured if column.key in values]
    reasons = list(reasons)
    if len(values) < len(measured):
        what = column.foreign or column.metric
        reasons.append(Reason("not done", f"{what} is not among the data"))
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < len(values):
        reasons.append(UNDEFINED)
    return NumberCell(tuple(defined), tuple(dict.fromkeys(reasons)))


def _times(reader: Reader) -> dict[str, Times] | Reason:
    try:
        return reader.times()
    except Missing as missing:
        return missing.reason


def seconds(times: Times, metric: str) -> list[float]:
    """What each round says about a metric of the stopwatch."""
    if metric == "forward_seconds":
        return times.forward
    return [each * times.steps_per_epoch for each in times.step]


def _timed(times: dict[str, Times] | Reason, row: MethodRow, column: MetricColumn) -> NumberCell:
    if isinstance(times, Reason):
        return NumberCell((), (times,))
    rounds = torch.tensor(seconds(times[row.key], column.metric))
    return NumberCell((float(rounds.median()),))
