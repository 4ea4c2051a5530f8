"""Filled tables and the data of figures as files in an output root."""

import json

from kepsvgp.files import write_atomic
from kepsvgp.paper.claims import RESAMPLES
from kepsvgp.paper.figures import FigureData, figure_data
from kepsvgp.paper.filled import FilledTable, fill_table
from kepsvgp.paper.formats import FORMATS
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.records import OutputRoot


def write_table(
    planned: PlannedExhibit, root: OutputRoot, *, resamples: int = RESAMPLES
) -> FilledTable:
    """Fills a table and writes it in every format to `tables/`."""
    filled = fill_table(planned, root, resamples=resamples)
    for suffix, render in FORMATS.items():
        write_atomic(root.path / "tables" / f"{planned.stem}.{suffix}", render(filled))
    return filled


def write_figure_data(planned: PlannedExhibit, root: OutputRoot) -> FigureData:
    """Reads the data of a figure and writes them to `figures/`."""
    found = figure_data(planned, root)
    content = {
        "figure": planned.exhibit.name,
        "title": found.title,
        "study": planned.study.described(),
        "notes": found.notes,
        "data": found.data,
    }
    file = root.path / "figures" / f"{planned.stem}.json"
    write_atomic(file, json.dumps(content, ensure_ascii=False) + "\n")
    lines = [f"# {found.title}", "", *(f"- {note}" for note in found.notes)]
    lines += ["", f"![{found.title}]({planned.stem}.png)", ""]
    write_atomic(file.with_suffix(".md"), "\n".join(lines))
    return found
