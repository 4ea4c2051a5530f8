"""The main job in small: train, compare, and show when a model is not to be trusted.

On the handwritten digits that come with scikit-learn, a Vision Transformer with softmax attention
and one with KEP-SVGP in its last layer are trained and measured on the test set, on corrupted
digits and against patches of photographs, beside the cheapest remedies for softmax: temperature
scaling, Monte Carlo dropout and an ensemble.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from kepsvgp.config.file import load_config
from kepsvgp.data import load_benchmark
from kepsvgp.methods.compare import Comparison, compare

NUM_MEMBERS = 3
# one corruption in the middle of its range, for each of three seeds
SEVERITIES = (3,)
# KEP-SVGP's own draws take the place of dropout's
METHODS = (
    "msp", "temperature", "mc_dropout", "ensemble", "kep", "kep+temperature", "kep+ensemble"
)  # fmt: skip


def run_demo(out: Path, console: Console) -> Comparison:
    """Trains, measures and prints; runs that are in `out` already are used again."""
    config = load_config("digits-small", ["train.select=last"])
    benchmark = load_benchmark(config.data)
    shifts = [
        f"shift/{name}" for name in benchmark.shifts if int(name.rpartition("/")[2]) in SEVERITIES
    ]
    comparison = compare(
        config,
        benchmark,
        out,
        methods=METHODS,
        num_seeds=NUM_MEMBERS,
        splits=["test", "val", *shifts, "ood"],
        console=console,
    )
    Console().print(_table(comparison))
    return comparison


class Column(NamedTuple):
    """One column of the table: a metric, averaged over the splits that its group has."""

    group: str
    title: str
    prefix: str
    metric: str
    sign: int
    """1 where larger is better, −1 where smaller is."""


_COLUMNS = (
    Column("test", "accuracy", "test", "accuracy", 1),
    Column("", "NLL", "test", "nll", -1),
    Column("", "ECE", "test", "ece", -1),
    Column("corrupted", "accuracy", "shift/", "accuracy", 1),
    Column("", "NLL", "shift/", "nll", -1),
    Column("", "ECE", "shift/", "ece", -1),
    Column("photos", "AUROC", "ood/", "ood_auroc", 1),
)


def _table(comparison: Comparison) -> Table:
    """Means over seeds, corruptions and sets of other data, the best of a column in bold."""
    table = Table("method", title="digits", title_justify="left", padding=(0, 0))
    for column in _COLUMNS:
        arrow = "↑" if column.sign > 0 else "↓"
        table.add_column(f"{column.group}\n{column.title}{arrow}", justify="right", no_wrap=True)
    methods = list(comparison.results)
    values = np.array([[_mean(comparison, m, column) for column in _COLUMNS] for m in methods])
    best = (values * [column.sign for column in _COLUMNS]).argmax(axis=0)
    for number, method in enumerate(methods):
        cells = [f"{value:.3f}" for value in values[number]]
        bold = [f"[bold]{c}[/]" if best[i] == number else c for i, c in enumerate(cells)]
        table.add_row(comparison.titles[method], *bold)
    return table


def _mean(comparison: Comparison, method: str, column: Column) -> float:
    splits = [s for s in comparison.results[method] if s.startswith(column.prefix)]
    return float(np.mean([comparison.mean(method, split, column.metric) for split in splits]))
