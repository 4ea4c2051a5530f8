"""`kepsvgp train`: a configuration in, a trained and measured run out."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.config.shipped import shipped_configs

CONFIG_HELP = f"A TOML file, or the name of a shipped one: {', '.join(shipped_configs())}."


def train(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as train.lr=1e-3 or method=msp."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<config>-<method>-<seed> by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, if there is one.")
    ] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets, for data.root.")
    ] = None,
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
    from kepsvgp.training.loop import is_main_process

    flags = {"root": data_root, "text_column": text_column, "label_column": label_column}
    changes = [*(overrides or []), *(f"data.{key}={flag}" for key, flag in flags.items() if flag)]
    settings = load_config(config, changes)
    method = find_method(settings.method)
    name = f"{find_config(config).stem}-{method.name}-{settings.seed}"
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
