"""Methods side by side on one benchmark: trained, fitted, measured, in one table.

All methods share the splits, the network and the budget; only what a method is made of differs.
Runs are kept, so that a comparison that was interrupted, or gets another method or seed,
trains only what is missing.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark
from kepsvgp.errors import UserError
from kepsvgp.files import write_json
from kepsvgp.methods.base import Method
from kepsvgp.runs.evaluation import measure, split_names
from kepsvgp.runs.folder import RunFolder

# {metric: one value for each seed}
Values = dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """What was measured: methods, splits, metrics, and one value for each seed."""

    seeds: tuple[int, ...]
    results: dict[str, dict[str, Values]]
    """{method: {split: {metric: values}}}"""
    titles: dict[str, str] = field(default_factory=dict)
    """What people call the methods."""

    def mean(self, method: str, split: str, metric: str) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.results[method][split][metric])

    def deviation(self, method: str, split: str, metric: str) -> float | None:
        """Standard deviation over the seeds; None for one seed alone."""
        values = self.results[method][split][metric]
        return statistics.stdev(values) if len(values) > 1 else None


def compare(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    *,
    methods: Sequence[str | type[Method] | Method],
    num_seeds: int = 1,
    splits: Sequence[str] = ("test",),
    console: Console | None = None,
) -> Comparison:
    """Trains what the methods need, fits and measures them, and writes `compare.json`.

    Args:
        config: What all runs share; its method is left aside, its seed is the first of several.
        benchmark: The data that `config.data` names.
        out: Folder for the runs, `<method>-<seed>`, and the result.
        methods: Names such as `msp`, `kep`, `temperature`, `kep+kfllla` or `ensemble`, or classes
            of methods.
        num_seeds: Independent runs of every trained method; an ensemble is made of all of them.
        splits: What is measured; see `evaluation.evaluate`.
        console: Where progress is shown; None for nowhere.
    """
    asked: list[Method] = [find_method(name) for name in dict.fromkeys(methods)]
    _check(asked, num_seeds)
    names = split_names(benchmark, splits)
    seeds = tuple(range(config.seed, config.seed + num_seeds))
    trained = {method.trained.name: method.trained for method in asked}
    runs = {
        name: [_train(config, benchmark, out, method, seed, console) for seed in seeds]
        for name, method in trained.items()
    }
    results: dict[str, dict[str, Values]] = {}
    for method in asked:
        own = runs[method.trained.name]
        measured = [
            measure(run, method, benchmark, names, members=others, console=console)
            for run, *others in ([own] if method.is_ensemble else [[run] for run in own])
        ]
        results[method.name] = {
            split: {m: [values[split][m] for values in measured] for m in measured[0][split]}
            for split in names
        }
    write_json(out / "compare.json", {"seeds": list(seeds), "results": results})
    return Comparison(seeds, results, {method.name: method.title for method in asked})


def _check(methods: Sequence[Method], num_seeds: int) -> None:
    """Refuses, before anything is trained, what cannot be done."""
    if not methods:
        raise UserError("methods must name at least one method; got none.")
    for method in methods:
        method.check_installed()
        method.trained.check_installed()
        if method.is_ensemble and num_seeds < 2:
            raise UserError(
                f"{method.name} must have several runs to be made of; got {num_seeds}. "
                "Give --seeds 5."
            )


def _train(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    method: Method,
    seed: int,
    console: Console | None,
) -> RunFolder:
    if console is not None:
        console.print(f"[bold]{method.name}[/bold], seed {seed}", highlight=False)
    settings = config.of_method(method.place).model_copy(update={"seed": seed})
    folder = out / f"{method.name}-{seed}"
    return method.train(settings, benchmark, folder, resume=True, console=console)


def rows(comparison: Comparison, split: str, metrics: Sequence[str]) -> Iterator[list[str]]:
    """Lines of a table: the method and `mean ± deviation` of every metric."""
    for method in comparison.results:
        cells = []
        for metric in metrics:
            deviation = comparison.deviation(method, split, metric)
            mean = f"{comparison.mean(method, split, metric):.3f}"
            cells.append(mean if deviation is None else f"{mean} ± {deviation:.3f}")
        yield [comparison.titles.get(method, method), *cells]
