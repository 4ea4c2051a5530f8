"""A table filled for one data set: numbers, claims and what was reduced, as one value."""

from typing import NamedTuple

from kepsvgp.metrics import Interval
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import NumberCell, Reader, fill
from kepsvgp.paper.claims import RESAMPLES, Claim, compare_pairs
from kepsvgp.paper.declarations import MetricColumn, Pair, PaperTable
from kepsvgp.paper.notes import notes_of
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.records import OutputRoot


class FilledTable(NamedTuple):
    """A table of ours beside the paper's, for one data set."""

    table: PaperTable
    planned: PlannedExhibit
    columns: tuple[MetricColumn, ...]
    cells: dict[tuple[str, str], NumberCell]
    claims: list[Claim]
    notes: list[str]
    differences: dict[Pair, dict[str, Interval]] = {}  # noqa: RUF012

    @property
    def title(self) -> str:
        """Number, if it is the paper's, subject and data set."""
        return self.table.title_for(self.planned.study.dataset)

    def best_rows(self, column: MetricColumn) -> set[str]:
        """Rows that have the best of our means in a column; all of them where they are equal."""
        found = {row.key: self.cells[row.key, column.key].mean for row in self.planned.rows}
        means = {row: mean for row, mean in found.items() if mean is not None}
        if len(means) < 2:
            return set()
        best = max(means.values(), key=lambda mean: METRICS[column.metric].sign * mean)
        return {row for row, mean in means.items() if mean == best}


def fill_table(
    planned: PlannedExhibit, root: OutputRoot, *, resamples: int = RESAMPLES
) -> FilledTable:
    """Everything there is to say about a table, from the runs in an output root."""
    table = planned.exhibit
    assert isinstance(table, PaperTable)
    reader = Reader(planned, root)
    compared = compare_pairs(table, reader, resamples=resamples)
    return FilledTable(
        table,
        planned,
        table.columns_for(planned.study.dataset),
        fill(table, reader),
        compared.claims,
        notes_of(planned, root),
        compared.differences,
    )
