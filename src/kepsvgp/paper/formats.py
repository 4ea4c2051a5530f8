"""Filled tables as Markdown, CSV, LaTeX and JSON, and as lines of words for a terminal."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kepsvgp.data.tables import csv_cell
from kepsvgp.files import write_atomic
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import NumberCell, Reason
from kepsvgp.paper.claims import RESAMPLES, Claim
from kepsvgp.paper.declarations import MethodRow, MetricColumn
from kepsvgp.paper.filled import FilledTable, fill_table
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.published import Number
from kepsvgp.paper.records import OutputRoot

NOTHING = "–"


def ours_text(cell: NumberCell, column: MetricColumn) -> str:
    """Mean ± standard deviation in the paper's units."""
    if cell.mean is None:
        return NOTHING
    written = METRICS[column.metric].paper_text
    text = written(cell.mean)
    return text if cell.sd is None else f"{text} ± {written(cell.sd)}"


def paper_text(number: Number | None) -> str:
    """What the paper printed."""
    if number is None:
        return NOTHING
    text = f"{number.mean:.{number.decimals}f}"
    return text if number.sd is None else f"{text} ± {number.sd:.{number.decimals}f}"


class RowText(NamedTuple):
    """A row in words.

    Attributes:
        row: The row.
        heading: The group that begins with it; empty for none.
        ours: Our numbers.
        is_best: Which of them are the best of their columns.
        papers: The paper's numbers; None if it has none here.
    """

    row: MethodRow
    heading: str
    ours: list[str]
    is_best: list[bool]
    papers: list[str] | None


def row_texts(filled: FilledTable) -> Iterator[RowText]:
    """The rows of a table in words, as every format shows them."""
    group = ""
    best = [filled.best_rows(column) for column in filled.columns]
    for row in filled.planned.rows:
        heading, group = (row.group if row.group != group else ""), row.group
        cells = [filled.cells[row.key, column.key] for column in filled.columns]
        yield RowText(
            row,
            heading,
            [ours_text(*each) for each in zip(cells, filled.columns, strict=True)],
            [row.key in rows for rows in best],
            [paper_text(c.published) for c in cells] if any(c.published for c in cells) else None,
        )


def reasons_of(filled: FilledTable) -> list[Reason]:
    """Why numbers are missing, each reason once."""
    return list(dict.fromkeys(reason for cell in filled.cells.values() for reason in cell.reasons))


def marks_of(filled: FilledTable, row: MethodRow, column: MetricColumn) -> str:
    """The numbers of a cell's reasons, such as ` [1]`, and a word if something failed."""
    every, reasons = reasons_of(filled), filled.cells[row.key, column.key].reasons
    word = " failed" if any(reason.kind == "failed" for reason in reasons) else ""
    return word + "".join(f" [{every.index(reason) + 1}]" for reason in reasons)


def markdown(filled: FilledTable) -> str:
    """The table with ours above the paper's, the claims, and what was reduced before both."""
    columns = filled.columns
    lines = [f"# {filled.title}", "", *(f"- {note}" for note in filled.notes), ""]
    lines += [_line(["Method", *(column.title for column in columns)])]
    lines += [_line(["---", *("---:" for _ in columns)])]
    for row, heading, ours, is_best, papers in row_texts(filled):
        if heading:
            lines.append(_line([f"**{heading}**", *("" for _ in columns)]))
        cells = [f"**{t}**" if best else t for t, best in zip(ours, is_best, strict=True)]
        marks = [marks_of(filled, row, column) for column in columns]
        lines.append(_line([row.title, *map("".join, zip(cells, marks, strict=True))]))
        if papers is not None:
            lines.append(_line(["*paper*", *(f"*{text}*" for text in papers)]))
    reasons = [f"{n}. {reason.text}" for n, reason in enumerate(reasons_of(filled), start=1)]
    lines += ["", *reasons] if reasons else []
    if filled.claims:
        lines += ["", "## The paper's claims", "", claims_summary(filled.claims), ""]
        lines += [_line(list(CLAIM_HEADS)), _line(["---"] * len(CLAIM_HEADS))]
        lines += map(_line, claim_texts(filled))
    return "\n".join(lines).rstrip() + "\n"


CLAIM_HEADS = ("Better in the paper", "than", "on", "paper", "ours: difference", "verdict")


def claims_summary(claims: list[Claim]) -> str:
    """How many claims hold, and what noise is."""
    counts = Counter(claim.verdict for claim in claims)
    return (
        f"Of {len(claims)}, {counts['holds'] + counts['holds, within noise']} hold here "
        f"({counts['holds']} beyond noise), {counts['fails'] + counts['fails, within noise']} do "
        f"not ({counts['fails']} beyond noise), {counts['unknown']} are unknown. Noise is that of "
        "the test set and the seeds: the 95 % interval of the difference, better − worse."
    )


def claim_texts(filled: FilledTable) -> Iterator[list[str]]:
    """One line for each claim, under `CLAIM_HEADS`."""
    titles = {
        row.key: f"{row.group}, {row.title}" if row.group else row.title
        for row in filled.planned.rows
    }
    for claim in filled.claims:
        printed = " / ".join(f"{n.mean:.{n.decimals}f}" for n in claim.printed)
        rows = [titles[claim.better], titles[claim.worse]]
        yield [*rows, claim.column.title, printed, _difference(claim), claim.verdict]


def _difference(claim: Claim) -> str:
    if claim.ours is None:
        return claim.reason.text if claim.reason is not None else NOTHING
    point, low, high = map(METRICS[claim.column.metric].paper_text, claim.ours)
    return f"{point} [{low}, {high}]"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


_CSV_COLUMNS = (
    *("table", "dataset", "row", "column"),
    *("ours_mean", "ours_sd", "ours_count", "paper_mean", "paper_sd", "reasons"),
)


def as_csv(filled: FilledTable) -> str:
    """One line for each cell, in the paper's units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    columns = {column.key: METRICS[column.metric].factor for column in filled.columns}
    for (row, column), cell in filled.cells.items():
        factor, printed = columns[column], cell.published
        ours = [None if value is None else value * factor for value in (cell.mean, cell.sd)]
        papers = [None, None] if printed is None else [printed.mean, printed.sd]
        reasons = csv_cell("; ".join(reason.text for reason in cell.reasons))
        place = [filled.table.name, filled.planned.study.dataset, row, column]
        writer.writerow([*place, *ours, len(cell.values), *papers, reasons])
    return text.getvalue()


_LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "η": r"$\eta$",
    "ᵉ": "$^e$",
    "ʳ": "$^r$",
    "ᵀ": r"$^\top$",
    "₁": "$_1$",
    "–": "--",
    "−": "$-$",
}


def latex(filled: FilledTable) -> str:
    """A booktabs table, ours above the paper's; what was reduced is in the caption."""
    titles = [_tex(column.title) for column in filled.columns]
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(filled.title)}. {_tex(' '.join(filled.notes))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(titles)}}}",
        r"\toprule",
        " & ".join(["Method", *titles]) + r" \\",
        r"\midrule",
    ]
    for row, heading, ours, is_best, papers in row_texts(filled):
        if heading:
            lines.append(rf"\multicolumn{{{len(titles) + 1}}}{{l}}{{{_tex(heading)}}} \\")
        cells = [
            rf"\textbf{{{_tex(text)}}}" if best else _tex(text)
            for text, best in zip(ours, is_best, strict=True)
        ]
        lines.append(" & ".join([_tex(row.title), *cells]) + r" \\")
        if papers is not None:
            italic = [rf"\textit{{{_tex(text)}}}" for text in papers]
            lines.append(" & ".join([r"\quad\textit{paper}", *italic]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def as_json(filled: FilledTable) -> str:
    """Everything: raw values by seed, the paper's numbers, claims, notes, and the study."""
    planned = filled.planned
    content = {
        "table": filled.table.name,
        "title": filled.title,
        "study": planned.study.described(),
        "notes": filled.notes,
        "columns": [
            {"key": c.key, "title": c.title, "scale": METRICS[c.metric].factor}
            for c in filled.columns
        ],
        "rows": [
            {
                "key": row.key,
                "title": row.title,
                "runs": [planned.tasks[row.key, seed].name for seed in planned.seeds],
            }
            for row in planned.rows
        ],
        "cells": [_cell_json(*place, cell) for place, cell in filled.cells.items()],
        "claims": [_claim_json(claim) for claim in filled.claims],
        "differences": {
            " − ".join(pair): intervals for pair, intervals in filled.differences.items()
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _cell_json(row: str, column: str, cell: NumberCell) -> dict[str, Any]:
    return {
        "row": row,
        "column": column,
        "values": list(cell.values),
        "mean": cell.mean,
        "sd": cell.sd,
        "reasons": [reason.text for reason in cell.reasons],
        "paper": None if cell.published is None else cell.published._asdict(),
    }


def _claim_json(claim: Claim) -> dict[str, Any]:
    return {
        "better": claim.better,
        "worse": claim.worse,
        "column": claim.column.key,
        "paper": [number.mean for number in claim.printed],
        "ours": None if claim.ours is None else claim.ours._asdict(),
        "verdict": claim.verdict,
        "reason": claim.reason.text if claim.reason is not None else "",
    }


FORMATS: dict[str, Callable[[FilledTable], str]] = {
    "md": markdown,
    "csv": as_csv,
    "tex": latex,
    "json": as_json,
}


def write_table(
    planned: PlannedExhibit, root: OutputRoot, *, resamples: int = RESAMPLES
) -> FilledTable:
    """Fills a table and writes it in every format to `tables/`."""
    filled = fill_table(planned, root, resamples=resamples)
    for suffix, render in FORMATS.items():
        write_atomic(root.path / "tables" / f"{planned.stem}.{suffix}", render(filled))
    return filled
