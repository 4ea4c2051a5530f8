"""Results as a table on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kepsvgp.compare import Comparison, rows
from kepsvgp.errors import printable
from kepsvgp.runs import RunFolder

_COLUMNS = {
    "accuracy": "accuracy",
    "mcc": "MCC",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "aurc": "AURC",
    "auroc": "AUROC",
    "fpr95": "FPR95",
}
_OOD_COLUMNS = {"ood_auroc": "AUROC", "ood_aupr": "AUPR", "ood_fpr95": "FPR95"}


def show_metrics(run: RunFolder, checkpoint: str, method: str, splits: Sequence[str]) -> None:
    """Prints what was measured on these splits, in raw units."""
    measured = run.metrics()[checkpoint][method]
    console = Console()
    familiar = [split for split in splits if not split.startswith("ood/")]
    foreign = [split for split in splits if split.startswith("ood/")]
    for columns, names in ((_COLUMNS, familiar), (_OOD_COLUMNS, foreign)):
        if not names:
            continue
        table = Table("split", title=f"{method}, checkpoint {checkpoint}", title_justify="left")
        for title in columns.values():
            table.add_column(title, justify="right")
        for name in names:
            table.add_row(name, *(f"{measured[name][metric]:.4f}" for metric in columns))
        console.print(table)
    say(console, f"run folder: {run.path}")


def show_comparison(comparison: Comparison, folder: Path) -> None:
    """Prints one table for each split, a line for each method, in raw units."""
    console = Console()
    if not console.is_terminal:
        # a log or a file has room for whole lines
        console = Console(width=200)
    splits = next(iter(comparison.results.values()))
    for split in splits:
        columns = _OOD_COLUMNS if split.startswith("ood/") else _COLUMNS
        runs = f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else "1 seed"
        table = Table("method", title=f"{split}, {runs}", title_justify="left")
        for title in columns.values():
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows(comparison, split, list(columns)):
            table.add_row(*row)
        console.print(table)
    say(console, f"runs and compare.json: {folder}")


def say(console: Console, line: str) -> None:
    """Prints a line as it is: names in it are neither markup nor commands to the terminal."""
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
