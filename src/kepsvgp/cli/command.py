"""How every command shows its help, and what several of them take."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kepsvgp.config.shipped import shipped_configs

CONFIG_HELP = f"A TOML file, or the name of a shipped one: {', '.join(shipped_configs())}."
CheckpointOption = Annotated[
    str | None, typer.Option(help="last, score or nll; what the run selected by default.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the data sets; otherwise KEPSVGP_DATA, else one in the user's cache."
    ),
]
MOST = 2**31 - 1
Samples = Annotated[int, typer.Option(min=1, max=MOST, help="Monte Carlo samples.")]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of the samples.")]
MaxRisk = Annotated[
    float | None, typer.Option(help="Abstain so that at most this share of answers is wrong.")
]
MaxFalseAlarm = Annotated[
    float | None, typer.Option(help="Abstain from foreign inputs, and from so few others.")
]
VariantOption = Annotated[
    str,
    typer.Option(
        metavar="text|program|ours",
        help="The paper's text, what its authors' program does, or our own choices.",
    ),
]


class _Shown:
    """Help that shows flags as flags, without a type to give."""

    def get_params(self, ctx: Any) -> list:
        """The parameters, of which flags name no value."""
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_Shown, TyperCommand):
    """A command with such help."""


class Group(_Shown, TyperGroup):
    """A group of commands with such help."""
