"""Results as a table on the terminal."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table

from kepsvgp.data.sets.foreign import distance
from kepsvgp.errors import UserError, printable
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.methods.compare import Comparison, rows
from kepsvgp.metrics import paired_bootstrap
from kepsvgp.metrics.registry import OF_A_SET, OF_OTHER_DATA, OOD_SCORES
from kepsvgp.paper.filled import FilledTable
from kepsvgp.paper.formats import (
    CLAIM_HEADS,
    claim_texts,
    claims_summary,
    marks_of,
    reasons_of,
    row_texts,
)
from kepsvgp.runs.folder import RunFolder
from kepsvgp.serving.tested import Tested, measured


def show_metrics(run: RunFolder, checkpoint: str, method: str, splits: Sequence[str]) -> None:
    """Prints what was measured on these splits, in raw units: own, shifted and foreign sets."""
    measured = run.metrics()[checkpoint][method]
    console = _console()
    groups: dict[str, list[str]] = {}
    for split in splits:
        kind = split.partition("/")[0]
        groups.setdefault(kind if kind in ("shift", "ood") else "split", []).append(split)
    for kind, names in groups.items():
        columns = _columns(names[0])
        lines = [
            [_set_title(name), *(f"{measured[name][key]:.4f}" for key in columns)] for name in names
        ]
        _show(console, f"{method}, checkpoint {checkpoint}", [kind, *columns.values()], lines)
    if "ood" in groups:
        _show_scores(console, {_set_title(name): measured[name] for name in groups["ood"]})
    say(console, f"run folder: {run.path}")


def _set_title(split: str) -> str:
    """A shifted set without its kind, a foreign one with its distance."""
    kind, _, name = split.partition("/")
    return f"{name} ({distance(name)})" if kind == "ood" else name or split


def _show_scores(console: Console, measured: Mapping[str, Mapping[str, float]]) -> None:
    """AUROC of every score by which foreign sets were told from the test set."""
    titles = {"ood_auroc": "confidence"}
    titles |= {f"ood_auroc_{name}": title for name, title in OOD_SCORES.items()}
    lines = [
        [title, *(f"{values.get(key, math.nan):.4f}" for values in measured.values())]
        for key, title in titles.items()
        if any(key in values for values in measured.values())
    ]
    _show(console, "AUROC by score", ["score", *measured], lines)


def show_tested(
    tested: Mapping[str, Tested], *, max_risk: float | None = None, compared: bool = False
) -> None:
    """Prints the metrics of models by name, of their groups, rules and differences."""
    console, columns = _console(), _columns("test")
    lines = []
    for name, given in tested.items():
        for split, values in measured(given).items():
            about = "by its own score" if split == "score" else split.removeprefix("group/")
            first = name if split == "test" else f"  {about}"
            lines.append([first, *(f"{values.get(key, math.nan):.4f}" for key in columns)])
    size = len(next(iter(tested.values())).prediction)
    _show(console, f"{size} examples", ["model", *columns.values()], lines)
    if max_risk is not None:
        for name, given in tested.items():
            say(console, f"{name}: {Abstainer.fit(given.prediction, max_risk=max_risk).words}")
    if compared:
        _show_differences(console, tested, columns)


def _show_differences(
    console: Console, tested: Mapping[str, Tested], columns: Mapping[str, str]
) -> None:
    (first, one), *others = tested.items()
    lines = []
    for name, given in others:
        if not torch.equal(given.labels, one.labels):
            raise UserError(f"{name} must be tested on the examples of {first}; its labels differ.")
        found = paired_bootstrap(
            given.prediction.probs, one.prediction.probs, one.labels, metrics=list(columns)
        )
        ends = [f"{found[key].low:+.4f} … {found[key].high:+.4f}" for key in columns]
        lines.append([name, *ends])
    _show(console, f"minus {first}, 95 % intervals", ["model", *columns.values()], lines)


def show_comparison(comparison: Comparison, folder: Path) -> None:
    """Prints one table for each split, a line for each method, in raw units."""
    console = _console()
    splits = next(iter(comparison.results.values()))
    for split in splits:
        columns = _columns(split)
        runs = f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else "1 seed"
        lines = list(rows(comparison, split, list(columns)))
        _show(console, f"{split}, {runs}", ["method", *columns.values()], lines)
    say(console, f"runs and compare.json: {folder}")


def show_filled(filled: FilledTable) -> None:
    """Prints a table of the paper, ours above the paper's, then which of its claims hold."""
    console = _console()
    say(console, "\n".join(f"- {note}" for note in filled.notes))
    lines = []
    for row, heading, ours, _, papers in row_texts(filled):
        marks = [marks_of(filled, row, column) for column in filled.columns]
        lines += [[heading, *("" for _ in ours)]] if heading else []
        lines.append([row.title, *map("".join, zip(ours, marks, strict=True))])
        lines += [] if papers is None else [["  paper", *papers]]
    _show(console, filled.title, ["method", *(c.title for c in filled.columns)], lines)
    for number, reason in enumerate(reasons_of(filled), start=1):
        say(console, f"{number}. {reason.text}")
    if filled.claims:
        _show(console, "The paper's claims", list(CLAIM_HEADS), list(claim_texts(filled)))
        say(console, claims_summary(filled.claims))


def _columns(split: str) -> dict[str, str]:
    """Names and titles of the metrics that a split has."""
    found = OF_OTHER_DATA if split.startswith("ood/") else OF_A_SET
    return {metric.name: metric.title for metric in found}


def _console() -> Console:
    console = Console()
    # a log or a file has room for whole lines
    return console if console.is_terminal else Console(width=200)


def _show(console: Console, title: str, heads: list[str], lines: list[list[str]]) -> None:
    """Prints a table with every name and number whole, in parts where it is too wide."""
    widths = [max(map(len, column)) + 1 for column in zip(heads, *lines, strict=True)]
    first = 1
    while first < len(heads):
        last = first + 1
        while last < len(heads) and sum(widths[: last + 1]) - sum(widths[1:first]) <= console.width:
            last += 1
        table = Table(
            Column(heads[0], overflow="fold"), title=title, title_justify="left",
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0,
        )  # fmt: skip
        for head in heads[first:last]:
            table.add_column(head, justify="right")
        for line in lines:
            table.add_row(line[0], *line[first:last])
        console.print(table, "")
        first = last


def say(console: Console, line: str) -> None:
    """Prints a line as it is: names in it are neither markup nor commands to the terminal."""
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
