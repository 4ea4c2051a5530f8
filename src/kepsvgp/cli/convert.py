"""`kepsvgp convert`: a model you have, with a posterior."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.other import LabelColumn, TextColumn


def convert(
    folder: Annotated[
        Path, typer.Argument(help="A Hugging Face classifier, fine-tuned, in its folder.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Labelled examples that it was not trained on: a CSV file of texts, or a folder "
            "with a folder of images for each class."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    layers: Annotated[int, typer.Option(min=1, help="How many attention layers, the last.")] = 1,
    max_risk: Annotated[
        float | None, typer.Option(help="Save a rule: at most this share of answers is wrong.")
    ] = None,
    max_false_alarm: Annotated[
        float | None,
        typer.Option(help="Save a rule: at most this share of familiar inputs is called foreign."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability with which --max-risk holds.")
    ] = 0.95,
    samples: Annotated[int, typer.Option(min=1, help="Monte Carlo samples.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the samples, and of how data are split.")] = 0,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
) -> None:
    """Give a Hugging Face model its posterior, without training it.

    The model answers as it did. New are how sure it may be, how foreign an input is, and, if
    asked for, a rule for when not to answer. Ends with a page that compares before and after.
    """
    from kepsvgp.cli.results import show_tested
    from kepsvgp.errors import UserError, printable
    from kepsvgp.report import write_report
    from kepsvgp.serving.conversion import convert_folder

    if out.resolve() == folder.resolve():
        raise UserError("--out must be another folder than the model's own, which stays as it is.")
    found = convert_folder(
        folder, data, out, layers=layers, max_risk=max_risk, max_false_alarm=max_false_alarm,
        confidence=confidence, text_column=text_column, label_column=label_column,
        num_samples=samples, seed=seed, say=lambda step: typer.echo(step, err=True),
    )  # fmt: skip
    tested = {"before": found.before, "converted": found.after}
    show_tested(tested, compared=True)
    dims = ", ".join(f"{each:.1f}" for each in found.fit.effective_dimension)
    typer.echo(
        f"posterior: prior precision {found.fit.prior_precision:g}, effective dimension {dims}"
    )
    if found.rule is not None:
        typer.echo(printable(found.rule.words))
    typer.echo(printable(str(write_report(tested, out / "report.html"))))
    typer.echo(f"model folder: {printable(str(out))}")
