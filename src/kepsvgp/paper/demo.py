"""The main job in small: train, compare, and show when a model is not to be trusted.

On the handwritten digits that come with scikit-learn, a Vision Transformer with softmax attention
and one with KEP-SVGP in its last layer are trained and measured on the test set, on corrupted
digits and against patches of photographs, beside the cheapest remedies for softmax: temperature
scaling, Monte Carlo dropout and an ensemble.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from kepsvgp.config.file import load_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.errors import printable
from kepsvgp.inference.prediction import Predictor
from kepsvgp.methods import ensemble, mc_dropout, msp, temperature
from kepsvgp.metrics.registry import METRICS, Metric
from kepsvgp.runs.evaluation import SplitMetrics, evaluate, split_names
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import train

NUM_MEMBERS = 3
SEVERITIES = (1, 3, 5)


class Row(NamedTuple):
    """One line of the table."""

    title: str
    metrics: SplitMetrics


def demo_config(method: str, seed: int) -> RunConfig:
    """The small profile of the digits: the methods share all but the attention."""
    return load_config("digits-small", [f"method={method}", f"seed={seed}", "train.select=last"])


def run_demo(out: Path, console: Console) -> list[Row]:
    """Trains, measures and prints; runs that are in `out` already are used again."""
    benchmark = load_benchmark(demo_config("kep", 0).data)
    rows = []
    for method, title in (("msp", "softmax"), ("kep", "KEP-SVGP")):
        runs = [_trained(method, seed, benchmark, out, console) for seed in range(NUM_MEMBERS)]
        console.print(f"measuring {title}", highlight=False)
        members = [msp.fit(run.model("last")) for run in runs]
        names = [run.path.name for run in runs]
        val = batches(benchmark.val, 200)
        predictors: dict[str, tuple[str, Predictor]] = {
            method: (title, members[0]),
            "temperature": ("  + temperature", temperature.fit(members[0], val)),
            "mc_dropout": ("  + MC dropout", mc_dropout.fit(members[0].model)),
            "ensemble": (f"  × {NUM_MEMBERS} ensemble", ensemble.fit(members, names)),
        }
        if method == "kep":
            # its own draws take the place of dropout's
            del predictors["mc_dropout"]
        for name, (row, predictor) in predictors.items():
            rows.append(Row(row, _measured(runs[0], benchmark, name, predictor)))
    Console().print(_table(rows))
    return rows


def _trained(
    method: str, seed: int, benchmark: Benchmark, out: Path, console: Console
) -> RunFolder:
    folder = out / f"{method}-{seed}"
    console.print(f"training {printable(str(folder))}", highlight=False, markup=False)
    return train(demo_config(method, seed), benchmark, folder, resume=True, console=console)


def _measured(
    run: RunFolder, benchmark: Benchmark, method: str, predictor: Predictor
) -> SplitMetrics:
    shifts = [
        f"shift/{name}" for name in benchmark.shifts if int(name.rpartition("/")[2]) in SEVERITIES
    ]
    wanted = split_names(benchmark, ["test", "val", *shifts, "ood"])
    known: SplitMetrics = run.metrics().get("last", {}).get(method, {})
    missing = [name for name in wanted if name not in known]
    return known | evaluate(
        run, benchmark, predictor, method=method, checkpoint="last", splits=missing
    )


class Column(NamedTuple):
    """One column of the table: a metric, averaged over the splits that its group has."""

    group: str
    prefix: str
    metric: Metric


_COLUMNS = (
    Column("test", "test", METRICS["accuracy"]),
    Column("", "test", METRICS["nll"]),
    Column("", "test", METRICS["ece"]),
    Column("corrupted", "shift/", METRICS["accuracy"]),
    Column("", "shift/", METRICS["nll"]),
    Column("", "shift/", METRICS["ece"]),
    Column("photos", "ood/", METRICS["ood_auroc"]),
)


def _table(rows: Sequence[Row]) -> Table:
    """Means over corruptions and over sets of other data, the best of a column in bold."""
    table = Table("method", title="digits", title_justify="left", padding=(0, 0))
    for column in _COLUMNS:
        heading = f"{column.group}\n{column.metric.title}{column.metric.arrow}"
        table.add_column(heading, justify="right", no_wrap=True)
    values = np.array([[_mean(row.metrics, column) for column in _COLUMNS] for row in rows])
    best = (values * [column.metric.sign for column in _COLUMNS]).argmax(axis=0)
    for number, row in enumerate(rows):
        cells = [f"{value:.3f}" for value in values[number]]
        bold = [f"[bold]{c}[/]" if best[i] == number else c for i, c in enumerate(cells)]
        table.add_row(row.title, *bold)
    return table


def _mean(metrics: SplitMetrics, column: Column) -> float:
    found = [v[column.metric.name] for name, v in metrics.items() if name.startswith(column.prefix)]
    return float(np.mean(found))
