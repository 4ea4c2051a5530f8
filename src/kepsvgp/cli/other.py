"""Models that are no runs: converted ones in their folders, and any in files of predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

TextColumn = Annotated[str, typer.Option(help="Column of the texts in labelled data.")]
LabelColumn = Annotated[str, typer.Option(help="Column of the true labels.")]


def is_other(paths: Sequence[Path]) -> bool:
    """Whether some of these are converted models or files of predictions."""
    from kepsvgp.conversion.folder import is_pretrained
    from kepsvgp.serving.tested import SUFFIXES

    return any(is_pretrained(p) or p.suffix.lower() in SUFFIXES for p in paths)
