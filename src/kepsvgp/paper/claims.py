"""Which of the paper's comparisons hold here, with an interval.

A claim is "A is better than B on metric m", as the paper's means have it for a data set. Ours is
the difference of the means over the seeds, with an interval that says what other seeds and another
test set could change.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from kepsvgp.metrics import (
    Interval,
    UndefinedMetricWarning,
    confidence_score,
    paired_bootstrap,
    paired_bootstrap_ood,
)
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import UNDEFINED, Missing, Reader, Reason, seconds
from kepsvgp.paper.declarations import MethodRow, MetricColumn, Pair, PaperTable
from kepsvgp.paper.published import Number, published

RESAMPLES = 1000

Verdict = Literal["holds", "holds, within noise", "fails, within noise", "fails", "unknown"]


class Claim(NamedTuple):
    """One comparison.

    Attributes:
        better: The row that is better in the paper.
        worse: The row that is worse there.
        column: The number they are compared by.
        printed: The paper's two numbers, that of the better row first.
        ours: Our difference, better − worse, and its interval; raw units.
        reason: Why there is none; None if there is one.
    """

    better: str
    worse: str
    column: MetricColumn
    printed: tuple[Number, Number]
    ours: Interval | None
    reason: Reason | None = None

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


class Compared(NamedTuple):
    """The pairs of a table, compared.

    Attributes:
        claims: What the paper claims of them, held against our runs; none for other data sets.
        differences: First − second of each pair in every column, for a study of ours.
    """

    claims: list[Claim]
    differences: dict[Pair, dict[str, Interval]]


def compare_pairs(table: PaperTable, reader: Reader, *, resamples: int = RESAMPLES) -> Compared:
    """Differences of the pairs of a table, with their intervals."""
    dataset = reader.planned.study.dataset
    columns = table.columns_for(dataset)
    printed = published(table.numbers or table.name).get(dataset, {})
    rows = {row.key: row for row in reader.planned.rows}
    found = Compared([], {})
    for pair in table.pairs:
        if not rows.keys() >= {*pair}:
            continue
        claimed = [c for c in columns if all(c.key in printed.get(row, {}) for row in pair)]
        rivals = _Rivals(table, reader, (rows[pair.first], rows[pair.second]), resamples)
        intervals, reason = rivals.intervals(columns if table.config else claimed)
        if table.config:
            found.differences[pair] = intervals
        for column in claimed:
            numbers = printed[pair.first][column.key], printed[pair.second][column.key]
            claim = make_claim(pair, column, numbers, intervals.get(column.key), reason)
            found.claims.extend([] if claim is None else [claim])
    return found


def make_claim(
    pair: Pair,
    column: MetricColumn,
    printed: tuple[Number, Number],
    ours: Interval | None,
    reason: Reason | None = None,
) -> Claim | None:
    """What the paper claims of a pair by two numbers; None where they are equal."""
    first, second = printed
    if first.mean == second.mean:
        return None
    if ours is not None and any(math.isnan(number) for number in ours):
        ours, reason = None, UNDEFINED
    if (first.mean > second.mean) == METRICS[column.metric].is_higher_better:
        return Claim(*pair, column, (first, second), ours, reason)
    if ours is not None:
        ours = Interval(-ours.difference, -ours.high, -ours.low)
    return Claim(pair.second, pair.first, column, (second, first), ours, reason)


class _Rivals(NamedTuple):
    """Two rows that are compared: differences are those of the first and the second."""

    table: PaperTable
    reader: Reader
    rows: tuple[MethodRow, MethodRow]
    resamples: int

    def intervals(
        self, columns: Sequence[MetricColumn]
    ) -> tuple[dict[str, Interval], Reason | None]:
        """The difference for each column, and why there is none."""
        found: dict[str, Interval] = {}
        reason = None
        timed = [column for column in columns if column.source == "time"]
        others = [column for column in columns if column.source != "time"]
        for part, measure in ((timed, self._of_times), (others, self._of_predictions)):
            try:
                found |= measure(part) if part else {}
            except Missing as missing:
                reason = missing.reason
        return found, reason

    def _of_predictions(self, columns: list[MetricColumn]) -> dict[str, Interval]:
        with warnings.catch_warnings():
            # an undefined metric has no interval, and is shown as such
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            names = self.reader.splits(self.rows[0], 0, self.table.source)
            if self.table.source == "ood":
                wanted = {f"ood/{column.foreign}": None for column in columns}
                parts = [self._of_other_data(name) for name in wanted if name in names]
                return {key: interval for part in parts for key, interval in part.items()}
            # every set shows the same examples, so that they are drawn together
            a, b = (
                torch.cat([self.reader.scores(row, name).probs for name in names])
                for row in self.rows
            )
            targets = self.reader.scores(self.rows[0], names[0]).targets
            metrics = [column.metric for column in columns]
            return paired_bootstrap(a, b, targets, metrics=metrics, num_resamples=self.resamples)

    def _of_other_data(self, name: str) -> dict[str, Interval]:
        sides = [
            torch.stack([confidence_score(run) for run in self.reader.scores(row, split).probs])
            for row in self.rows
            for split in ("test", name)
        ]
        found = paired_bootstrap_ood(*sides, positive="in", num_resamples=self.resamples)
        return {f"{metric}/{name.removeprefix('ood/')}": each for metric, each in found.items()}

    def _of_times(self, columns: list[MetricColumn]) -> dict[str, Interval]:
        """Differences of medians over the rounds, which both share; rounds are drawn again."""
        times = self.reader.times()
        found = {}
        generator = torch.Generator().manual_seed(0)
        for column in columns:
            rounds = torch.tensor([seconds(times[row.key], column.metric) for row in self.rows])
            shape = self.resamples, rounds.shape[1]
            drawn = torch.randint(rounds.shape[1], shape, generator=generator)
            medians = rounds[:, drawn].median(dim=-1).values
            low, high = (medians[0] - medians[1]).quantile(torch.tensor([0.025, 0.975])).tolist()
            point = rounds.median(dim=-1).values
            found[column.key] = Interval(float(point[0] - point[1]), low, high)
        return found
