"""`kepsvgp evaluate`: a trained run on any of its sets."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A folder that `kepsvgp train` made.")],
    splits: Annotated[
        str,
        typer.Option(help="Comma-separated: val, test, shift, ood, all, or one like shift/fog/5."),
    ] = "val,test,ood",
    checkpoint: Annotated[
        str | None, typer.Option(help="last, score or nll; what the run selected by default.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Predict sets with a trained run, and measure its accuracy and uncertainty.

    Predictions and metrics go into the run folder.
    """
    from rich.console import Console

    from kepsvgp.cli.results import show_metrics
    from kepsvgp.evaluation import evaluate, split_names
    from kepsvgp.runs import RunFolder, as_checkpoint

    folder = RunFolder(run)
    config = folder.config()
    chosen = as_checkpoint(checkpoint or config.train.select)
    benchmark = folder.benchmark(data_root)
    names = split_names(benchmark, splits.split(","))
    evaluate(
        folder,
        benchmark,
        folder.model(chosen),
        method=config.method,
        checkpoint=chosen,
        splits=names,
        console=Console(stderr=True),
    )
    show_metrics(folder, chosen, config.method, names)
