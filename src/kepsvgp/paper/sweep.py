"""A whole request: which jobs it means, which of them are left, and what comes out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kepsvgp.errors import UserError
from kepsvgp.files import write_atomic
from kepsvgp.paper.cells import timing_file, timing_for
from kepsvgp.paper.claims import RESAMPLES
from kepsvgp.paper.declarations import DATASETS, Figure, Row, Table
from kepsvgp.paper.figures import FigureData, figure_data
from kepsvgp.paper.filled import Filled, fill_table
from kepsvgp.paper.formats import FORMATS
from kepsvgp.paper.plan import (
    Study,
    Task,
    check_fits,
    merged,
    row_task,
    rows_of,
    tasks_of,
)
from kepsvgp.paper.records import left_of
from kepsvgp.paper.tables import EXTRAS, FIGURES, NAMES, TABLES, find
from kepsvgp.paper.timing import Timing

Exhibit = Table | Figure
# trained models that a report page can show side by side
MOST_REPORTED = 8


class Piece(NamedTuple):
    """One table or figure for one data set."""

    exhibit: Exhibit
    study: Study

    @property
    def stem(self) -> str:
        """Name of its files."""
        parts = [self.exhibit.name, self.study.dataset, self.study.budget]
        if self.study.checkpoint is not None:
            parts.append(self.study.checkpoint)
        return "-".join(parts)


class Jobs(NamedTuple):
    """What a request takes: runs, and times."""

    tasks: list[Task]
    timings: list[Timing]


def exhibits(names: Sequence[str], rows: Sequence[str] = ()) -> list[Exhibit]:
    """Tables and figures by name, `all` for every one, with these rows alone if any are named."""
    wanted = NAMES if "all" in names else tuple(dict.fromkeys(names))
    found = [find(name) for name in wanted]
    return [_only(exhibit, rows) for exhibit in found] if rows else found


def _only(exhibit: Exhibit, keys: Sequence[str]) -> Exhibit:
    known = {row.key: row for row in exhibit.rows}
    if isinstance(exhibit, Table):
        known |= {row.key: row for row in EXTRAS}
    unknown = [key for key in keys if key not in known]
    if unknown:
        every = {row.key for e in (*TABLES, *FIGURES) for row in e.rows} | set(known)
        if unknown[0] not in every:
            raise UserError(
                f"--rows must be among {', '.join(known)} for {exhibit.name}; got {unknown[0]!r}."
            )
    kept: tuple[Row, ...] = tuple(known[key] for key in keys if key in known)
    if not kept:
        raise UserError(f"--rows must leave {exhibit.name} a row; it has {', '.join(known)}.")
    return replace(exhibit, rows=kept)


def pieces(
    found: Sequence[Exhibit], dataset: str | None, study_of: Callable[[str], Study]
) -> list[Piece]:
    """Each table and figure for one data set, or for all that the paper has it for."""
    if dataset is not None and dataset not in DATASETS:
        raise UserError(f"--dataset must be one of {', '.join(DATASETS)}; got {dataset!r}.")
    wanted = []
    for exhibit in found:
        for name in exhibit.datasets if dataset is None else (dataset,):
            check_fits(exhibit, name)
            wanted.append(Piece(exhibit, study_of(name)))
    return wanted


def jobs_of(wanted: Sequence[Piece]) -> Jobs:
    """The jobs of a request, each once, whether they are done or not."""
    tasks = merged(task for piece in wanted for task in tasks_of(piece.exhibit, piece.study))
    timings = {}
    for piece in wanted:
        timing = (
            timing_for(piece.exhibit, piece.study) if isinstance(piece.exhibit, Table) else None
        )
        if timing is not None:
            timings[timing.name] = timing
    return Jobs(tasks, list(timings.values()))


def left_jobs(jobs: Jobs, out: Path) -> Jobs:
    """Those of the jobs that are not done in this output root."""
    return Jobs(
        [task for task in jobs.tasks if not left_of(task, out).is_nothing],
        [timing for timing in jobs.timings if not timing_file(out, timing).exists()],
    )


def write_table(piece: Piece, out: Path, *, resamples: int = RESAMPLES) -> Filled:
    """Fills a table and writes it in every format to `tables/`."""
    assert isinstance(piece.exhibit, Table)
    filled = fill_table(piece.exhibit, piece.study, out, resamples=resamples)
    for suffix, render in FORMATS.items():
        write_atomic(out / "tables" / f"{piece.stem}.{suffix}", render(filled))
    return filled


def write_figure_data(piece: Piece, out: Path) -> FigureData:
    """Reads the data of a figure and writes them to `figures/`."""
    assert isinstance(piece.exhibit, Figure)
    found = figure_data(piece.exhibit, piece.study, out)
    content = {
        "figure": piece.exhibit.name,
        "title": found.title,
        "study": piece.study.described(),
        "notes": found.notes,
        "data": found.data,
    }
    text = json.dumps(content, ensure_ascii=False)
    write_atomic(out / "figures" / f"{piece.stem}.json", text + "\n")
    lines = [f"# {found.title}", "", *(f"- {note}" for note in found.notes)]
    lines += ["", f"![{found.title}]({piece.stem}.png)", ""]
    write_atomic(out / "figures" / f"{piece.stem}.md", "\n".join(lines))
    return found


def reported_runs(wanted: Sequence[Piece], out: Path) -> list[Path]:
    """Finished runs that a report compares: all, or those of no variants if there are too many."""
    plain: dict[Path, None] = {}
    every: dict[Path, None] = {}
    for piece in wanted:
        for row in rows_of(piece.exhibit, piece.study.dataset):
            for seed in range(piece.study.seeds):
                task = row_task(piece.exhibit, row, piece.study, seed)
                if task.asks and left_of(task, out).is_nothing:
                    every[out / task.name] = None
                    if not row.settings:
                        plain[out / task.name] = None
    seeds = max((piece.study.seeds for piece in wanted), default=1)
    return list(plain if plain and len(every) > MOST_REPORTED * seeds else every)
