"""`kepsvgp refit`: an honest posterior for a run that is trained already."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import DataRoot


def refit(
    run: Annotated[Path, typer.Argument(help="A folder that `kepsvgp train` made with kep.")],
    data_root: DataRoot = None,
) -> None:
    """Fit the posterior of a trained run again, by Gauss-Newton in one pass over its data.

    What the model says at its posterior mean stays; the spread around it is fitted to the training
    set, with a prior precision that the validation NLL chooses. `kepsvgp predict` has the new
    posterior from then on; the checkpoints stay as they were trained.
    """
    from rich.console import Console

    from kepsvgp.cli.results import show_metrics
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.config.plugins import find_method
    from kepsvgp.methods.refitted import install
    from kepsvgp.runs.evaluation import measure
    from kepsvgp.runs.folder import RunFolder

    folder, console = RunFolder(run), Console(stderr=True)
    config = folder.config()
    trained, refitted = find_method(config.method), find_method("refitted", on=config.method)
    warn_if_unfinished(run)
    benchmark = folder.benchmark(data_root)
    with folder.lock():
        for method in (trained, refitted):
            measure(folder, method, benchmark, console=console)
        install(folder, refitted, benchmark)
    for method in (trained, refitted):
        show_metrics(folder, config.train.select, method.name, ["val", "test"])
