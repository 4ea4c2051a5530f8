"""`kepsvgp evaluate`: a trained run on any of its sets, or any model on labelled data."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import CheckpointOption, DataRoot
from kepsvgp.cli.other import LabelColumn, TextColumn, is_other
from kepsvgp.errors import UserError


def evaluate(
    run: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A folder that `kepsvgp train` made; several for an ensemble. Or folders that "
            "save_pretrained wrote, with labelled data after them. Or files of probabilities "
            "and labels (.csv, .tsv, .jsonl, .npz).",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="What to fit on top of the run: temperature, mc_dropout, kfllla or, for KEP-SVGP, "
            "refitted; or ensemble. The trained model itself by default."
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: val, test, shift, ood, all, or one like shift/fog/5. "
            "By default val, test and, where there are such sets, ood."
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    data_root: DataRoot = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    max_risk: Annotated[
        float | None, typer.Option(help="Not for runs: also find the rule that keeps this risk.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Not for runs: keep the predictions as this .npz file.")
    ] = None,
) -> None:
    """Predict sets with a trained run, and measure its accuracy and uncertainty.

    Methods are fitted with the run's training and validation data and kept in its folder, as are
    predictions and metrics; those of an ensemble in the folder of its first run. Models that are
    no runs are asked about the labelled data named last: a CSV file of texts and labels, or a
    folder with one folder of images for each class.
    """
    if is_other(run):
        from kepsvgp.cli.results import show_tested
        from kepsvgp.serving.tested import open_tested

        tested = open_tested(run, text_column=text_column, label_column=label_column)
        show_tested(tested, max_risk=max_risk)
        if out is not None:
            _keep(tested, out)
        return

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


def _keep(tested: dict, out: Path) -> None:
    if out.suffix.lower() != ".npz" or len(tested) != 1:
        raise UserError(
            f"--out must end in .npz, for the predictions of one model; got {out.name} for "
            f"{len(tested)}."
        )
    next(iter(tested.values())).save(out)
