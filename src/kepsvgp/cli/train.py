"""`kepsvgp train`: a configuration in, a trained and measured run out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kepsvgp.cli.command import CONFIG_HELP, DataRoot, VariantOption

if TYPE_CHECKING:
    from kepsvgp.data import Benchmark
    from kepsvgp.runs.folder import RunFolder


def train(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as train.lr=1e-3 or method=msp."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<config>-<method>-<seed> by default.")
    ] = None,
    variant: VariantOption = "ours",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, if there is one.")
    ] = False,
    data_root: DataRoot = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of texts in a CSV file, for data.text_column.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of classes in a CSV file, for data.label_column.")
    ] = None,
) -> None:
    """Train a model and measure it on its validation and test sets.

    Every run is a folder with its configuration, weights, history and metrics. A run that was
    interrupted continues with --resume to the same weights. In many processes:
    torchrun --nproc-per-node 4 -m kepsvgp train CONFIG.
    """
    from rich.console import Console

    from kepsvgp.cli.results import show_metrics
    from kepsvgp.config.file import find_config, load_config
    from kepsvgp.config.plugins import find_method
    from kepsvgp.data import load_benchmark
    from kepsvgp.ops.denormals import flushed_denormals
    from kepsvgp.runs.evaluation import measure
    from kepsvgp.training.processes import is_main_process

    flags = {"root": data_root, "text_column": text_column, "label_column": label_column}
    changes = [*(overrides or []), *(f"data.{key}={flag}" for key, flag in flags.items() if flag)]
    settings = load_config(config, changes, variant=variant)
    method = find_method(settings.method)
    kind = "" if variant == "ours" else f"-{variant}"
    name = f"{find_config(config).stem}{kind}-{method.name}-{settings.seed}"
    folder = out or Path("runs") / name
    console = Console(stderr=True)
    # from here, since loading data may start torch's threads
    with flushed_denormals():
        benchmark = load_benchmark(settings.data)
        run = method.train(settings, benchmark, folder, resume=resume, console=console)
    if not is_main_process():
        return
    with run.lock():
        for checkpoint in dict.fromkeys((settings.train.select, "last")):
            measure(run, method, benchmark, checkpoint=checkpoint, console=console)
    show_metrics(run, settings.train.select, method.name, ["val", "test"])
    _show_activity(run, benchmark)


def _show_activity(run: "RunFolder", benchmark: "Benchmark") -> None:
    """Whether the KEP layers do anything, and what to do where they do not; the page shows it."""
    from kepsvgp.attention.kep import KEPAttention
    from kepsvgp.cli.inspect import describe
    from kepsvgp.inference.activity import ADVICE
    from kepsvgp.paper.inspection import inspect_run

    if not any(isinstance(module, KEPAttention) for module in run.model().modules()):
        return
    for layer in inspect_run(run, benchmark).layers:
        if layer.activity is None:
            continue
        typer.echo(f"{layer.name}: {describe(layer.activity)}")
        word = layer.activity.word
        if ADVICE[word]:
            typer.echo(f"warning: {layer.name} is {word}: {ADVICE[word]}.", err=True)
