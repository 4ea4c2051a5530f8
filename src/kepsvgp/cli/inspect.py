"""`kepsvgp inspect`: are the attention layers of a run healthy?"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kepsvgp.runs.inspection import Inspection


class InspectedSplit(StrEnum):
    """A part of the data."""

    train = "train"
    val = "val"
    test = "test"


def inspect(
    run: Annotated[Path, typer.Argument(help="A folder that `kepsvgp train` made.")],
    split: Annotated[
        InspectedSplit, typer.Option(help="Whose examples are looked at.")
    ] = InspectedSplit.test,
    examples: Annotated[int, typer.Option(min=1, help="How many examples are looked at.")] = 64,
    checkpoint: Annotated[
        str | None, typer.Option(help="last, score or nll; what the run selected by default.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Look inside a run's attention layers, and write inspect.json into its folder.

    Shows the spectrum of each layer's kernel and how much of it the rank explains; for KEP
    layers, how near the learnt scores are to the exact singular vectors, the KL of each head
    and what is left of its noise. Says what looks wrong.
    """
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.paper.inspection import inspect_run
    from kepsvgp.runs.folder import RunFolder
    from kepsvgp.runs.weights import as_checkpoint

    folder = RunFolder(run)
    warn_if_unfinished(run)
    chosen = as_checkpoint(checkpoint or folder.config().train.select)
    found = inspect_run(
        folder, folder.benchmark(data_root), checkpoint=chosen, split=split.value, examples=examples
    )
    _show(found)
    typer.echo(f"written: {run / 'inspect.json'}")


def _show(found: "Inspection") -> None:
    for layer in found.layers:
        first = ", ".join(f"{value:.3f}" for value in layer.singular_values[:8])
        typer.echo(f"{layer.name} ({layer.kind}, {layer.heads} heads)")
        typer.echo(
            f"  singular values, normalised: {first}{' …' * (len(layer.singular_values) > 8)}"
        )
        if layer.explained is not None:
            typer.echo(f"  rank {layer.rank} explains {layer.explained:.1%}")
        if layer.overlap is not None and layer.chance is not None and layer.principal is not None:
            for side in ("left", "right"):
                share, chance = getattr(layer.overlap, side), getattr(layer.chance, side)
                cosines = ", ".join(f"{value:.2f}" for value in getattr(layer.principal, side))
                typer.echo(
                    f"  {side} scores span {share:.1%} of the exact singular subspace (random "
                    f"ones {chance:.1%}); cosines of the principal angles: {cosines}"
                )
        if layer.posterior is not None:
            for head in range(layer.heads):
                typer.echo(
                    f"  head {head + 1}: KL {layer.posterior.kl[head]:.2f}, posterior scale "
                    f"{layer.posterior.scale[head]:.3f} of the prior's, noise "
                    f"{layer.posterior.noise[head]:.1%} of the output"
                )
        for finding in layer.findings:
            typer.echo(f"  ! {finding}")
        if layer.kind in ("kep", "primal"):
            typer.echo("  not healthy" if layer.findings else "  healthy")
