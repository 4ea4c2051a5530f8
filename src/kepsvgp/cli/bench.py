"""`kepsvgp bench`: speed, measured side by side."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Suite(StrEnum):
    """What can be measured."""

    layer = "layer"
    train = "train"
    predict = "predict"
    scaling = "scaling"
    parallel = "parallel"
    methods = "methods"
    metrics = "metrics"
    loop = "loop"
    start = "start"


def bench(
    suites: Annotated[
        list[Suite] | None, typer.Argument(help="What to measure; everything by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each contender has.")] = 15,
    small: Annotated[
        bool, typer.Option("--small", help="Tiny sizes, to try the programs; ratios mean nothing.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Measure nothing: print a JSON document of before as a Markdown page."),
    ] = None,
) -> None:
    """Measure speed: contenders take turns in one run, and ratios are what counts.

    Other work on the machine blurs the ratios; the quartiles show by how much. Measure on a
    machine that has nothing else to do.
    """
    if page is not None:
        from kepsvgp.bench.page import read, render

        typer.echo(render(read(page)), nl=False)
        return
    import torch
    from rich.console import Console

    from kepsvgp.bench.machine import machine
    from kepsvgp.bench.options import Options
    from kepsvgp.bench.suites import SUITES, Measurement, show
    from kepsvgp.bench.suites import as_json as document

    torch.set_num_threads(threads)
    options = Options(rounds=rounds, small=small)
    measured_on = machine()
    console = Console(file=sys.stderr if as_json else sys.stdout)
    results: dict[str, list[Measurement]] = {}
    for suite in suites or list(Suite):
        results[suite.value] = []
        for measurement in SUITES[suite.value](options):
            results[suite.value].append(measurement)
            show(measurement, console)
    if as_json:
        typer.echo(document(measured_on, results))
