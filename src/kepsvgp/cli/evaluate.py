"""`kepsvgp evaluate`: a trained run on any of its sets."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[
        list[Path],
        typer.Argument(help="A folder that `kepsvgp train` made; several for an ensemble."),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="What to fit on top of the run: temperature, mc_dropout or kfllla; or ensemble. "
            "The trained model itself by default."
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: val, test, shift, ood, all, or one like shift/fog/5. "
            "By default val, test and, where there are such sets, ood."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="last, score or nll; what the run selected by default.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Predict sets with a trained run, and measure its accuracy and uncertainty.

    Methods are fitted with the run's training and validation data and kept in its folder, as are
    predictions and metrics; those of an ensemble in the folder of its first run.
    """
    from rich.console import Console

    from kepsvgp.cli.results import show_metrics
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.config.plugins import find_method
    from kepsvgp.runs.evaluation import measure, split_names
    from kepsvgp.runs.folder import RunFolder
    from kepsvgp.runs.weights import as_checkpoint

    folder, *members = map(RunFolder, run)
    config = folder.config()
    asked = find_method(method or config.method, on=config.method)
    asked.check_runs([folder, *members])
    for each in run:
        warn_if_unfinished(each)
    chosen = as_checkpoint(checkpoint or config.train.select)
    benchmark = folder.benchmark(data_root)
    usual = ["val", "test", *(["ood"] if benchmark.ood else [])]
    names = split_names(benchmark, usual if splits is None else splits.split(","))
    with folder.lock():
        measure(
            folder, asked, benchmark, names, checkpoint=chosen, members=members, again=True,
            console=Console(stderr=True),
        )  # fmt: skip
    show_metrics(folder, chosen, asked.name, names)
