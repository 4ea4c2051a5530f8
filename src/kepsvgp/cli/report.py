"""`kepsvgp report`: one HTML page, and figures, from run folders."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import CheckpointOption
from kepsvgp.cli.other import LabelColumn, TextColumn, is_other


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Evaluated run folders, or folders that hold some. Or folders that "
            "save_pretrained wrote, with labelled data after them. Or files of probabilities "
            "and labels (.csv, .tsv, .jsonl, .npz).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures there, as PNG and SVG.")
    ] = None,
    checkpoint: CheckpointOption = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
) -> None:
    """Write one self-contained HTML page that shows whether models can be trusted."""
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.errors import UserError, printable
    from kepsvgp.report import write_report
    from kepsvgp.runs.folder import find_runs

    if out.suffix.lower() not in (".html", ".htm"):
        # it replaces what is there, which might be a file of a run
        raise UserError(f"--out must end in .html or .htm; got {out.name}.")
    if is_other(runs):
        from kepsvgp.serving.tested import open_tested

        if figures is not None:
            raise UserError(f"--figures must come with runs; got {figures} for other models.")
        tested = open_tested(runs, text_column=text_column, label_column=label_column)
        typer.echo(printable(str(write_report(tested, out))))
        return
    for run in find_runs(runs):
        if run.metrics_file.exists():
            warn_if_unfinished(run.path)
    typer.echo(printable(str(write_report(runs, out, checkpoint=checkpoint))))
    if figures is not None:
        from kepsvgp.report.figure_files import write_figures

        for path in write_figures(runs, figures, checkpoint=checkpoint):
            typer.echo(printable(str(path)))
