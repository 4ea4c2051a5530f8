"""`kepsvgp inspect`: what do the attention layers of a run do?"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kepsvgp.cli.command import CheckpointOption, DataRoot
from kepsvgp.cli.other import TextColumn, is_other
from kepsvgp.errors import UserError

if TYPE_CHECKING:
    from kepsvgp.inference.activity import Activity
    from kepsvgp.runs.inspection import Inspection


class InspectedSplit(StrEnum):
    """A part of the data."""

    train = "train"
    val = "val"
    test = "test"


def inspect(
    run: Annotated[
        Path,
        typer.Argument(help="A folder that `kepsvgp train` made, or that save_pretrained wrote."),
    ],
    data: Annotated[
        Path | None,
        typer.Argument(help="For the latter: texts (CSV, TSV, JSONL) or images to look at."),
    ] = None,
    split: Annotated[
        InspectedSplit, typer.Option(help="Whose examples are looked at.")
    ] = InspectedSplit.test,
    examples: Annotated[int, typer.Option(min=1, help="How many examples are looked at.")] = 64,
    checkpoint: CheckpointOption = None,
    data_root: DataRoot = None,
    text_column: TextColumn = "text",
) -> None:
    """Look inside a run's attention layers, and write inspect.json into its folder.

    Shows the spectrum of each layer's kernel and how much of it the rank explains; for KEP
    layers, how near the learnt scores are to the exact singular vectors, what became of the
    posterior of each head, and whether the layer is active, silent, collapsed or prior noise by
    examples of the validation set. Says what looks wrong.
    """
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.paper.inspection import inspect_run
    from kepsvgp.runs.folder import RunFolder
    from kepsvgp.runs.weights import as_checkpoint

    if is_other([run]):
        from kepsvgp.paper.inspection import inspect_saved

        if data is None:
            raise UserError(f"{run} must be followed by texts or images to look at; got none.")
        _show(inspect_saved(run, data, text_column, examples=examples))
        return
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
                    f"{layer.posterior.noise[head]:.1%} of the output, size of the scores "
                    f"{layer.posterior.scores[head]:.3f}"
                )
        if layer.activity is not None:
            typer.echo(f"  {describe(layer.activity)}")
        for finding in layer.findings:
            typer.echo(f"  ! {finding}")


def describe(found: "Activity") -> str:
    """How active a layer is, in one line."""
    return (
        f"{found.word}: d_eff {found.effective_dimension:.1f}; its draws disagree by "
        f"{found.epistemic:.1e} nats, where an honest posterior's would by about d_eff / 2N = "
        f"{found.allowed:.1e}, and the prior's by {found.prior:.1e}"
    )
