"""The main job in small: train, compare, and show when a model is not to be trusted.

On the handwritten digits that come with scikit-learn, a Vision Transformer with softmax attention
and one with KEP-SVGP in its last layer are trained and measured on the test set, on corrupted
digits and against patches of photographs, beside the cheapest remedies for softmax: temperature
scaling, Monte Carlo dropout and an ensemble.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kepsvgp.config.file import load_config
from kepsvgp.data import load_benchmark
from kepsvgp.methods.compare import Comparison, compare
from kepsvgp.metrics.registry import METRICS

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


# what is shown of which splits, under one heading
_GROUPS = (
    ("test", "test", ("accuracy", "nll", "ece")),
    ("corrupted", "shift/", ("accuracy", "nll", "ece")),
    ("photos", "ood/", ("ood_auroc",)),
)


def _table(comparison: Comparison) -> Table:
    """Means over seeds, corruptions and sets of other data.

    No cell is crowned: whether one is better than another takes an interval, and the page has it.
    """
    table = Table("method", title="digits", title_justify="left", padding=(0, 0))
    methods, columns = list(comparison.results), []
    for heading, prefix, names in _GROUPS:
        for number, name in enumerate(names):
            metric = METRICS[name]
            group = "" if number else heading
            table.add_column(
                f"{group}\n{metric.title}{metric.arrow}", justify="right", no_wrap=True
            )
            columns.append([_mean(comparison, method, prefix, name) for method in methods])
    for place, method in enumerate(methods):
        table.add_row(comparison.titles[method], *(f"{column[place]:.3f}" for column in columns))
    return table


def _mean(comparison: Comparison, method: str, prefix: str, metric: str) -> float:
    splits = [split for split in comparison.results[method] if split.startswith(prefix)]
    return float(np.mean([comparison.mean(method, split, metric) for split in splits]))
