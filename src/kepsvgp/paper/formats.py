"""Filled tables as Markdown, CSV, LaTeX and JSON."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kepsvgp.data.tables import csv_cell
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import Cell
from kepsvgp.paper.claims import Claim
from kepsvgp.paper.declarations import TITLES, Column
from kepsvgp.paper.filled import Filled, best_rows
from kepsvgp.paper.published import Number

NOTHING = "–"


def ours_text(cell: Cell, column: Column) -> str:
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


def markdown(filled: Filled) -> str:
    """The table with ours above the paper's, the claims, and what was reduced before both."""
    marks = _Marks()
    lines = [f"# {filled.title}", ""]
    lines += [f"- {note}" for note in filled.notes]
    lines += ["", _line(["Method", *(column.title for column in filled.columns)])]
    lines += [_line(["---", *("---:" for _ in filled.columns)])]
    group = ""
    for row in filled.rows:
        if row.group and row.group != group:
            group = row.group
            lines.append(_line([f"**{group}**", *("" for _ in filled.columns)]))
        cells = [filled.cells[row.key, column.key] for column in filled.columns]
        ours = []
        for cell, column in zip(cells, filled.columns, strict=True):
            text = ours_text(cell, column)
            if row.key in best_rows(filled, column):
                text = f"**{text}**"
            ours.append(text + marks.of(cell))
        lines.append(_line([row.title, *ours]))
        if any(cell.published for cell in cells):
            lines.append(_line(["*paper*", *(f"*{paper_text(c.published)}*" for c in cells)]))
    if marks.reasons:
        lines += ["", *(f"{number}. {reason}" for number, reason in marks.listed())]
    lines += ["", *_claims(filled)]
    return "\n".join(lines).rstrip() + "\n"


class _Marks:
    """Numbers for the reasons why something is missing, each reason once."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def of(self, cell: Cell) -> str:
        """The marks of a cell, such as ` [1]`."""
        numbers = []
        for reason in cell.reasons:
            if reason not in self.reasons:
                self.reasons.append(reason)
            numbers.append(self.reasons.index(reason) + 1)
        word = " failed" if any("failed" in reason for reason in cell.reasons) else ""
        return word + "".join(f" [{number}]" for number in numbers)

    def listed(self) -> Iterable[tuple[int, str]]:
        return enumerate(self.reasons, start=1)


def _claims(filled: Filled) -> list[str]:
    if not filled.table.is_published:
        return []
    if not filled.claims:
        return ["The paper makes no comparison here that these numbers could be held against."]
    titles = {row.key: _full_title(filled, row.key) for row in filled.rows}
    counts = Counter(claim.verdict for claim in filled.claims)
    lines = [
        "## The paper's claims",
        "",
        f"Of {len(filled.claims)}, {counts['holds'] + counts['holds, within noise']} hold here "
        f"({counts['holds']} beyond noise), {counts['fails'] + counts['fails, within noise']} do "
        f"not ({counts['fails']} beyond noise), {counts['unknown']} are unknown. Noise is that of "
        "the test set: the 95 % paired bootstrap interval of the difference, better − worse.",
        "",
        _line(["Better in the paper", "than", "on", "paper", "ours: difference", "verdict"]),
        _line(["---", "---", "---", "---", "---", "---"]),
    ]
    for claim in filled.claims:
        printed = " / ".join(f"{n.mean:.{n.decimals}f}" for n in claim.printed)
        if claim.origin != filled.study.dataset:
            printed += f" ({TITLES[claim.origin]})"
        lines.append(
            _line(
                [
                    titles[claim.better],
                    titles[claim.worse],
                    claim.column.title,
                    printed,
                    _difference(claim),
                    claim.verdict,
                ]
            )
        )
    return lines


def _full_title(filled: Filled, key: str) -> str:
    row = next(row for row in filled.rows if row.key == key)
    return f"{row.group}, {row.title}" if row.group else row.title


def _difference(claim: Claim) -> str:
    if claim.ours is None:
        return claim.reason or NOTHING
    point, low, high = map(METRICS[claim.column.metric].paper_text, claim.ours)
    return f"{point} [{low}, {high}]"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


_CSV_COLUMNS = (
    *("table", "dataset", "row", "column"),
    *("ours_mean", "ours_sd", "ours_count", "paper_mean", "paper_sd", "reasons"),
)


def as_csv(filled: Filled) -> str:
    """One line for each cell, in the paper's units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in filled.rows:
        for column in filled.columns:
            cell = filled.cells[row.key, column.key]
            scale = METRICS[column.metric].factor
            printed = cell.published
            writer.writerow(
                [
                    filled.table.name,
                    filled.study.dataset,
                    row.key,
                    column.key,
                    _times(cell.mean, scale),
                    _times(cell.sd, scale),
                    len(cell.values),
                    None if printed is None else printed.mean,
                    None if printed is None else printed.sd,
                    csv_cell("; ".join(cell.reasons)),
                ]
            )
    return text.getvalue()


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


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


def latex(filled: Filled) -> str:
    """A booktabs table, ours above the paper's; what was reduced is in the caption."""
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(filled.title)}. {_tex(' '.join(filled.notes))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(filled.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *(_tex(column.title) for column in filled.columns)]) + r" \\",
        r"\midrule",
    ]
    group = ""
    for row in filled.rows:
        if row.group and row.group != group:
            group = row.group
            width = len(filled.columns) + 1
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{{_tex(group)}}} \\")
        cells = [filled.cells[row.key, column.key] for column in filled.columns]
        ours = []
        for cell, column in zip(cells, filled.columns, strict=True):
            text = _tex(ours_text(cell, column))
            best = row.key in best_rows(filled, column)
            ours.append(rf"\textbf{{{text}}}" if best else text)
        lines.append(" & ".join([_tex(row.title), *ours]) + r" \\")
        if any(cell.published for cell in cells):
            papers = (rf"\textit{{{_tex(paper_text(c.published))}}}" for c in cells)
            lines.append(" & ".join([r"\quad\textit{paper}", *papers]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def as_json(filled: Filled) -> str:
    """Everything: raw values by seed, the paper's numbers, claims, notes, and the study."""
    content = {
        "table": filled.table.name,
        "title": filled.title,
        "study": filled.study.described(),
        "notes": filled.notes,
        "columns": [
            {"key": c.key, "title": c.title, "scale": METRICS[c.metric].factor}
            for c in filled.columns
        ],
        "rows": [
            {"key": row.key, "title": row.title, "runs": filled.runs[row.key]}
            for row in filled.rows
        ],
        "cells": [_cell_json(filled, row.key, c) for row in filled.rows for c in filled.columns],
        "claims": [_claim_json(claim) for claim in filled.claims],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _cell_json(filled: Filled, row: str, column: Column) -> dict[str, Any]:
    cell = filled.cells[row, column.key]
    return {
        "row": row,
        "column": column.key,
        "values": list(cell.values),
        "mean": cell.mean,
        "sd": cell.sd,
        "reasons": list(cell.reasons),
        "paper": None if cell.published is None else cell.published._asdict(),
    }


def _claim_json(claim: Claim) -> dict[str, Any]:
    return {
        "better": claim.better,
        "worse": claim.worse,
        "column": claim.column.key,
        "paper": [number.mean for number in claim.printed],
        "origin": claim.origin,
        "ours": None if claim.ours is None else claim.ours._asdict(),
        "verdict": claim.verdict,
        "reason": claim.reason,
    }


FORMATS: dict[str, Callable[[Filled], str]] = {
    "md": markdown,
    "csv": as_csv,
    "tex": latex,
    "json": as_json,
}
