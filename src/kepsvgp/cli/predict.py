"""`kepsvgp predict`: new texts or images through a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import MOST, MaxFalseAlarm, MaxRisk, Samples, Seed


def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, or one that save_pretrained wrote.")],
    source: Annotated[
        Path, typer.Argument(help="Texts as CSV, TSV or JSONL, or a folder of images.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .jsonl file; standard output by default.")
    ] = None,
    samples: Samples = 10,
    max_risk: MaxRisk = None,
    confidence: Annotated[
        float | None, typer.Option(help="Probability with which --max-risk holds; 0.95 if none.")
    ] = None,
    max_false_alarm: MaxFalseAlarm = None,
    column: Annotated[str, typer.Option(help="Column or field that has the texts.")] = "text",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Report broken rows and go on without them.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST, help="Inputs at a time.")] = 256,
    seed: Seed = 0,
) -> None:
    """Predict new inputs, with the uncertainty of each and whether to withhold the answer.

    The input is read and the output written as it comes, so files may be larger than memory.
    """
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.errors import UserError
    from kepsvgp.runs.folder import RunFolder
    from kepsvgp.serving import predict_file

    if confidence is not None and max_risk is None:
        raise UserError(f"--confidence must come with the --max-risk it is for; got {confidence}.")
    if RunFolder(model).config_file.exists():
        warn_if_unfinished(model)
    predict_file(
        model, source, out, num_samples=samples, max_risk=max_risk,
        confidence=0.95 if confidence is None else confidence, max_false_alarm=max_false_alarm,
        column=column, skip_bad=skip_bad, batch_size=batch_size, seed=seed,
    )  # fmt: skip
