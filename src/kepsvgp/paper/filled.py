"""A table filled for one data set: numbers, claims and what was reduced, as one value."""

from pathlib import Path
from typing import NamedTuple

from kepsvgp.config.file import load_config
from kepsvgp.files import read_json
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import Cell, Reader, fill, timing_file, timing_for
from kepsvgp.paper.claims import RESAMPLES, Claim, check_claims
from kepsvgp.paper.declarations import TITLES, Column, Figure, Row, Table
from kepsvgp.paper.plan import Study, config_name, row_task, settings_of


class Filled(NamedTuple):
    """A table of ours beside the paper's, for one data set."""

    table: Table
    study: Study
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, str], Cell]
    claims: list[Claim]
    notes: list[str]
    runs: dict[str, list[str]]

    @property
    def title(self) -> str:
        """Number, if it is the paper's, subject and data set."""
        subject = f"{self.table.title}: {TITLES[self.study.dataset]}"
        if not self.table.is_published:
            return subject
        return f"Table {self.table.name.removeprefix('table')}. {subject}"


def fill_table(table: Table, study: Study, out: Path, *, resamples: int = RESAMPLES) -> Filled:
    """Everything there is to say about a table, from the runs in an output root."""
    return Filled(
        table,
        study,
        table.rows_for(study.dataset),
        table.columns_for(study.dataset),
        fill(table, study, out),
        check_claims(table, study, out, resamples=resamples),
        notes_of(table, study, out),
        runs_of(table, study),
    )


def runs_of(table: Table, study: Study) -> dict[str, list[str]]:
    """The folders of each row's runs, one for each seed."""
    return {
        row.key: [row_task(table, row, study, seed).name for seed in range(study.seeds)]
        for row in table.rows_for(study.dataset)
    }


def notes_of(exhibit: Table | Figure, study: Study, out: Path) -> list[str]:
    """What a reader must know before the numbers: what was reduced, generated or is missing."""
    is_published = isinstance(exhibit, Figure) or exhibit.is_published
    seeds = f"{study.seeds} {'seed' if study.seeds == 1 else 'seeds'}"
    notes = [f"{seeds} (the paper: 5)." if is_published else f"{seeds}."]
    if is_published and study.dataset not in exhibit.datasets:
        names = ", ".join(TITLES[name] for name in exhibit.datasets)
        notes.append(
            f"The paper has this for {names}; for {TITLES[study.dataset]} it printed no numbers."
        )
    if study.budget != "paper":
        notes.append(f"Configuration {study.budget}, not the paper's: {_reduced(study)}.")
    if study.overrides:
        notes.append(f"Changed on request: {', '.join(study.overrides)}.")
    weights = study.checkpoint_of(study.base())
    notes.append(f"Weights measured: {_CHECKPOINTS[weights]}.")
    notes += [note[0].upper() + note[1:] + "." for note in Reader(exhibit, study, out).notes()]
    if isinstance(exhibit, Table):
        notes += exhibit.notes
        notes += _timing_notes(exhibit, study, out)
        if settings_of(exhibit, study):
            notes.append(f"Architecture of SGPA's paper: {', '.join(settings_of(exhibit, study))}.")
        elif exhibit.paper_settings:
            notes.append("The depth is that of the profile, not that of SGPA's paper.")
    return notes


_CHECKPOINTS = {
    "score": "those of the best validation score",
    "nll": "those of the best validation NLL",
    "last": "those of the last epoch",
}


def _timing_notes(table: Table, study: Study, out: Path) -> list[str]:
    timing = timing_for(table, study)
    if timing is None or not timing_file(out, timing).exists():
        return []
    content = read_json(timing_file(out, timing), "threads", "device")
    threads = content["threads"]
    return [f"Times are from {content['device']}, {threads} thread{'s' * (threads != 1)}."]


def _reduced(study: Study) -> str:
    """What differs from the paper's configuration, `key=ours (paper's)`."""
    changes = []
    papers = load_config(config_name(study.dataset, "paper"))
    flat_ours, flat_papers = load_config(study.source).identity(), papers.identity()
    for key, value in flat_ours.items():
        if value != flat_papers.get(key):
            changes.append(f"{key}={value} (paper {flat_papers.get(key)})")
    return ", ".join(changes) or "the same settings"


def best_rows(filled: Filled, column: Column) -> set[str]:
    """Rows that have the best of our means in a column; all of them where they are equal."""
    means = {
        row.key: cell.mean
        for row in filled.rows
        if (cell := filled.cells[row.key, column.key]).mean is not None
    }
    if len(means) < 2:
        return set()
    pick = max if METRICS[column.metric].is_higher_better else min
    best = pick(value for value in means.values() if value is not None)
    return {row for row, value in means.items() if value == best}
