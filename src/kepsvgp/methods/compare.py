"""Methods side by side on one benchmark: trained, fitted, measured, in one table.

All methods share the splits, the network and the budget; only what a method is made of differs.
Runs are kept, so that a comparison that was interrupted, or gets another method or seed,
trains only what is missing.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kepsvgp.config.sections import Method, RunConfig
from kepsvgp.data import Benchmark
from kepsvgp.errors import UserError
from kepsvgp.files import write_json
from kepsvgp.methods.registry import (
    check_installed,
    get_method,
    result_name,
    split_name,
    train_method,
)
from kepsvgp.runs.evaluation import default_device, evaluate, split_names
from kepsvgp.runs.folder import RunFolder

# {metric: one value for each seed}
Values = dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """What was measured: methods, splits, metrics, and one value for each seed."""

    seeds: tuple[int, ...]
    results: dict[str, dict[str, Values]]
    """{method: {split: {metric: values}}}"""

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
    methods: Sequence[str],
    num_seeds: int = 1,
    splits: Sequence[str] = ("test",),
    console: Console | None = None,
) -> Comparison:
    """Trains what the methods need, fits and measures them, and writes `compare.json`.

    Args:
        config: What all runs share; its method is left aside, its seed is the first of several.
        benchmark: The data that `config.data` names.
        out: Folder for the runs, `<method>-<seed>`, and the result.
        methods: Names such as `msp`, `kep`, `temperature`, `kep+kfllla` or `ensemble`.
        num_seeds: Independent runs of every trained method; an ensemble is made of all of them.
        splits: What is measured; see `evaluation.evaluate`.
        console: Where progress is shown; None for nowhere.
    """
    plan = [(name, *_parts(name, num_seeds)) for name in dict.fromkeys(methods)]
    if not plan:
        raise UserError("methods must name at least one method; got none.")
    names = split_names(benchmark, splits)
    seeds = tuple(range(config.seed, config.seed + num_seeds))
    runs: dict[Method, list[RunFolder]] = {}
    bases: list[Method] = list(dict.fromkeys(base for _, base, _ in plan))
    for base in bases:
        runs[base] = [_train(config, benchmark, out, base, seed, console) for seed in seeds]
    results: dict[str, dict[str, Values]] = {}
    for name, base, is_ensemble in plan:
        groups = [runs[base]] if is_ensemble else [[run] for run in runs[base]]
        measured = [_measure(name, group, benchmark, names, console) for group in groups]
        results[result_name(*_named(name, base))] = {
            split: {
                metric: [values[split][metric] for values in measured]
                for metric in measured[0][split]
            }
            for split in names
        }
    comparison = Comparison(seeds, results)
    write_json(out / "compare.json", {"seeds": list(seeds), "results": results})
    return comparison


def _parts(name: str, num_seeds: int) -> tuple[Method, bool]:
    """The trained method under a name, and whether it is an ensemble of its runs."""
    check_installed(name)
    base, posthoc = split_name(name)
    is_ensemble = posthoc == "ensemble"
    if is_ensemble and num_seeds < 2:
        raise UserError(
            f"{name} must have several runs to be made of; got {num_seeds}. Give --seeds 5."
        )
    return base or "msp", is_ensemble


def _named(name: str, base: Method) -> tuple[Method, Any]:
    return base, split_name(name)[1]


def _train(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    base: Method,
    seed: int,
    console: Console | None,
) -> RunFolder:
    if console is not None:
        console.print(f"[bold]{base}[/bold], seed {seed}", highlight=False)
    settings = config.model_copy(update={"method": base, "seed": seed})
    folder = out / f"{base}-{seed}"
    return train_method(settings, benchmark, folder, resume=True, console=console)


def _measure(
    name: str,
    runs: Sequence[RunFolder],
    benchmark: Benchmark,
    splits: Sequence[str],
    console: Console | None,
) -> dict[str, dict[str, float]]:
    """What was measured of one method on one run, or on an ensemble kept with its first run."""
    run, *others = runs
    config = run.config()
    checkpoint = config.train.select
    method = result_name(*_named(name, config.method))

    def missing() -> list[str]:
        known = run.metrics().get(checkpoint, {}).get(method, {})
        return [split for split in splits if split not in known]

    # an ensemble of other runs than before is another one
    if missing() or others:
        predictor = get_method(
            name,
            run,
            benchmark,
            checkpoint,
            members=others,
            device=default_device(),
            console=console,
        )
        evaluate(
            run,
            benchmark,
            predictor,
            method=method,
            checkpoint=checkpoint,
            # more than before, if the method had to be fitted again
            splits=splits if others else missing(),
            console=console,
        )
    return run.metrics()[checkpoint][method]


def rows(comparison: Comparison, split: str, metrics: Sequence[str]) -> Iterator[list[str]]:
    """Lines of a table: the method and `mean ± deviation` of every metric."""
    for method in comparison.results:
        cells = []
        for metric in metrics:
            deviation = comparison.deviation(method, split, metric)
            mean = f"{comparison.mean(method, split, metric):.3f}"
            cells.append(mean if deviation is None else f"{mean} ± {deviation:.3f}")
        yield [method, *cells]
