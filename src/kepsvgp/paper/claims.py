"""Which of the paper's comparisons hold here, with an interval.

A claim is "A is better than B on metric m", as the paper's means have it. Ours is the
difference of the means over the seeds, with a paired bootstrap over the test examples: it says
what another test set could change, and by its mean over the seeds given what these seeds did.
"""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kepsvgp.metrics import (
    Interval,
    UndefinedMetricWarning,
    confidence_score,
    paired_bootstrap,
    paired_bootstrap_ood,
)
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import Missing, Reader, read_times, seconds
from kepsvgp.paper.declarations import Column, Pair, Row, Table, score_of
from kepsvgp.paper.plan import Study
from kepsvgp.paper.published import Number, Published, published

RESAMPLES = 1000

Verdict = Literal["holds", "holds, within noise", "fails, within noise", "fails", "unknown"]


class Claim(NamedTuple):
    """One comparison.

    Attributes:
        better: The row that is better in the paper.
        worse: The row that is worse there.
        column: The number they are compared by.
        printed: The paper's two numbers, that of the better row first.
        origin: The data set of the paper that they are from.
        ours: Our difference, better − worse, and its interval; raw units.
        reason: Why there is none.
    """

    better: str
    worse: str
    column: Column
    printed: tuple[Number, Number]
    origin: str
    ours: Interval | None
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether the claim holds here, and whether the interval leaves any doubt."""
        if self.ours is None:
            return "unknown"
        sign = METRICS[self.column.metric].sign
        gain = sign * self.ours.difference
        ends = sorted((sign * self.ours.low, sign * self.ours.high))
        if gain > 0:
            return "holds" if ends[0] > 0 else "holds, within noise"
        return "fails" if ends[1] < 0 else "fails, within noise"


def check_claims(
    table: Table, study: Study, out: Path, *, resamples: int = RESAMPLES
) -> list[Claim]:
    """The paper's claims about a table, held against our runs."""
    reader = Reader(table, study, out)
    rows = {row.key: row for row in table.rows_for(study.dataset)}
    columns = table.columns_for(study.dataset)
    numbers = published(table.name)
    claims = []
    for pair in table.pairs:
        if pair.first not in rows or pair.second not in rows:
            continue
        compared = [column for column in columns if _origin(numbers, pair, column, study.dataset)]
        if not compared:
            continue
        intervals, reason = _intervals(
            reader, rows[pair.first], rows[pair.second], compared, resamples
        )
        for column in compared:
            claim = _claim(numbers, pair, column, study.dataset, intervals, reason)
            if claim is not None:
                claims.append(claim)
    return claims


def _origin(numbers: Published, pair: Pair, column: Column, dataset: str) -> str | None:
    """The data set of the paper whose numbers make the claim: this one, or the first there is."""
    for name in (dataset, *numbers) if dataset in numbers else numbers:
        rows = numbers[name]
        key = _key(column, dataset, name)
        if all(key in rows.get(row, {}) for row in pair):
            return name
    return None


def _key(column: Column, dataset: str, origin: str) -> str:
    """The published column that stands for one of ours: scores stand for scores."""
    return score_of(origin) if column.key == score_of(dataset) else column.key


def _claim(
    numbers: Published,
    pair: Pair,
    column: Column,
    dataset: str,
    intervals: Mapping[str, Interval],
    reason: str,
) -> Claim | None:
    origin = _origin(numbers, pair, column, dataset)
    assert origin is not None
    key = _key(column, dataset, origin)
    first, second = (numbers[origin][row][key] for row in pair)
    if first.mean == second.mean:
        return None
    ours = intervals.get(column.key)
    if ours is not None and any(math.isnan(number) for number in ours):
        ours, reason = None, "undefined for these predictions"
    if (first.mean > second.mean) == METRICS[column.metric].is_higher_better:
        return Claim(*pair, column, (first, second), origin, ours, reason)
    if ours is not None:
        ours = Interval(-ours.difference, -ours.high, -ours.low)
    return Claim(pair.second, pair.first, column, (second, first), origin, ours, reason)


def _intervals(
    reader: Reader, first: Row, second: Row, columns: list[Column], resamples: int
) -> tuple[dict[str, Interval], str]:
    """First − second for each column, and why there is none."""
    found: dict[str, Interval] = {}
    timed = [column for column in columns if column.source == "time"]
    if timed:
        found |= _time_intervals(reader, first, second, timed, resamples)
    others = [column for column in columns if column.source != "time"]
    try:
        with warnings.catch_warnings():
            # an undefined metric has no interval, and is shown as such
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            found |= _bootstrap(reader, first, second, others, resamples)
    except Missing as missing:
        return found, str(missing)
    return found, ""


def _bootstrap(
    reader: Reader, first: Row, second: Row, columns: list[Column], resamples: int
) -> dict[str, Interval]:
    assert isinstance(reader.exhibit, Table)
    metrics = [column.metric for column in columns]
    match reader.exhibit.source:
        case "ood":
            return _ood_intervals(reader, first, second, columns, resamples)
        case "shift":
            names = reader.answered(first, 0, "shift")
            # every set shows the same examples, so that they are drawn together
            a, b = (
                torch.cat([reader.scores(row, name).probs for name in names])
                for row in (first, second)
            )
            labels = reader.scores(first, names[0]).labels
        case split:
            scores = reader.scores(first, split)
            a, labels = scores.probs, scores.labels
            b = reader.scores(second, split).probs
    return paired_bootstrap(a, b, labels, metrics=metrics, num_resamples=resamples)


def _ood_intervals(
    reader: Reader, first: Row, second: Row, columns: list[Column], resamples: int
) -> dict[str, Interval]:
    def confidence(row: Row, split: str) -> Tensor:
        return torch.stack([confidence_score(run) for run in reader.scores(row, split).probs])

    found = {}
    there = reader.answered(first, 0, "ood")
    for foreign in dict.fromkeys(column.foreign for column in columns):
        if f"ood/{foreign}" not in there:
            continue
        sides = [
            confidence(row, split)
            for row in (first, second)
            for split in ("test", f"ood/{foreign}")
        ]
        intervals = paired_bootstrap_ood(*sides, positive="in", num_resamples=resamples)
        found |= {f"{metric}/{foreign}": value for metric, value in intervals.items()}
    return found


def _time_intervals(
    reader: Reader, first: Row, second: Row, columns: list[Column], resamples: int
) -> dict[str, Interval]:
    """Differences of medians over the rounds, which both rows share; rounds are drawn again."""
    times = read_times(reader)
    if isinstance(times, str):
        return {}
    found = {}
    generator = torch.Generator().manual_seed(0)
    for column in columns:
        rounds = torch.tensor([seconds(times[row.key], column.metric) for row in (first, second)])
        drawn = torch.randint(rounds.shape[1], (resamples, rounds.shape[1]), generator=generator)
        medians = rounds[:, drawn].median(dim=-1).values
        low, high = (medians[0] - medians[1]).quantile(torch.tensor([0.025, 0.975])).tolist()
        point = rounds.median(dim=-1).values
        found[column.key] = Interval(float(point[0] - point[1]), low, high)
    return found
