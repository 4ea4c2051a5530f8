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
from kepsvgp.metrics.registry import METRICS, Metric

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


class DemoColumn(NamedTuple):
    """One column of the table: a metric, averaged over the splits that its group has."""

    group: str
    prefix: str
    metric: Metric


_COLUMNS = (
    DemoColumn("test", "test", METRICS["accuracy"]),
    DemoColumn("", "test", METRICS["nll"]),
    DemoColumn("", "test", METRICS["ece"]),
    DemoColumn("corrupted", "shift/", METRICS["accuracy"]),
    DemoColumn("", "shift/", METRICS["nll"]),
    DemoColumn("", "shift/", METRICS["ece"]),
    DemoColumn("photos", "ood/", METRICS["ood_auroc"]),
)


def _table(comparison: Comparison) -> Table:
    """Means over seeds, corruptions and sets of other data, the best of a column in bold."""
    table = Table("method", title="digits", title_justify="left", padding=(0, 0))
    for column in _COLUMNS:
        heading = f"{column.group}\n{column.metric.title}{column.metric.arrow}"
        table.add_column(heading, justify="right", no_wrap=True)
    methods = list(comparison.results)
    values = np.array([[_mean(comparison, m, column) for column in _COLUMNS] for m in methods])
    best = (values * [column.metric.sign for column in _COLUMNS]).argmax(axis=0)
    for number, method in enumerate(methods):
        cells = [f"{value:.3f}" for value in values[number]]
        bold = [f"[bold]{c}[/]" if best[i] == number else c for i, c in enumerate(cells)]
        table.add_row(comparison.titles[method], *bold)
    return table


def _mean(comparison: Comparison, method: str, column: DemoColumn) -> float:
    splits = [s for s in comparison.results[method] if s.startswith(column.prefix)]
    return float(np.mean([comparison.mean(method, split, column.metric.name) for split in splits]))
