"""The suites by name, and what they print."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.table import Table

from kepsvgp.bench import growth, layer, loop, methods, metrics_bench, models, start, traffic
from kepsvgp.bench.growth import Growth
from kepsvgp.bench.methods import Costs
from kepsvgp.bench.options import Options
from kepsvgp.bench.timing import Contest, Figures
from kepsvgp.bench.traffic import Traffic


@runtime_checkable
class Measurement(Protocol):
    """What a suite yields."""

    @property
    def name(self) -> str:
        """What was measured."""
        ...

    @property
    def passed(self) -> bool | None:
        """Whether a limit was kept; None where there is none."""
        ...

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        ...


def _metrics(options: Options) -> Iterator[Measurement]:
    num_examples = 10_000 if options.small else 1_000_000
    repeats = min(options.rounds, 5)
    values = metrics_bench.measure(num_examples, repeats=repeats)
    yield Figures(f"metrics of {num_examples:,} examples", values)


SUITES: Mapping[str, Callable[[Options], Iterable[Measurement]]] = {
    "layer": layer.contests,
    "train": models.train_contests,
    "predict": models.predict_contests,
    "scaling": growth.measurements,
    "parallel": traffic.measurements,
    "methods": methods.measurements,
    "metrics": _metrics,
    "loop": loop.measurements,
    "start": start.contests,
}


def as_json(machine: Mapping[str, object], results: Mapping[str, list[Measurement]]) -> str:
    """All results and the machine, as one document."""
    suites = {name: [m.summary() for m in measured] for name, measured in results.items()}
    return json.dumps({"machine": machine, "suites": suites}, indent=2, ensure_ascii=False)


def show(measurement: Measurement, console: Console) -> None:
    """One measurement as a table."""
    if isinstance(measurement, Contest):
        console.print(_contest_table(measurement))
    elif isinstance(measurement, Growth):
        console.print(_growth_table(measurement))
    elif isinstance(measurement, Costs | Traffic):
        console.print(measurement.table())
    elif isinstance(measurement, Figures):
        table = Table("", "", title=measurement.name, title_justify="left")
        for name, value in measurement.values.items():
            table.add_row(name, f"{value:.4g}")
        console.print(table)
    if measurement.passed is not None:
        console.print("[green]kept[/green]" if measurement.passed else "[red]not kept[/red]")


def _contest_table(contest: Contest) -> Table:
    table = Table("", "ratio", "quartiles", "seconds", title=contest.name, title_justify="left")
    for name, result in contest.results.items():
        own = result.summary()
        low, high = own["ratio_quartiles"]
        spread, seconds = f"{low:.3f} – {high:.3f}", f"{own['seconds']:.4f}"
        table.add_row(name, f"{result.ratio:.3f}", spread, seconds)
    if contest.limit is not None:
        limit = contest.limit
        sign, wish = "≥" if limit.at_least else "≤", f", wish {limit.wish}" if limit.wish else ""
        table.caption = f"{limit.contender}: must be {sign} {limit.must}{wish}"
    return table


def _growth_table(measured: Growth) -> Table:
    table = Table("tokens", "seconds", "peak MB", title=measured.name, title_justify="left")
    rows = zip(measured.lengths, measured.seconds, measured.peak_bytes, strict=True)
    for length, seconds, peak in rows:
        table.add_row(f"{length:,}", f"{seconds:.4f}", f"{peak / 1e6:.1f}")
    limit = "" if measured.must is None else f"; must be ≤ {measured.must}, wish {measured.wish}"
    time, memory = measured.time_exponent, measured.memory_exponent
    table.caption = f"exponents: time {time:.2f}, memory {memory:.2f}{limit}"
    return table
