"""A word on runs whose training was interrupted, before their numbers are believed."""

import shlex
from contextlib import suppress
from pathlib import Path

import typer


def warn_if_unfinished(run: Path) -> None:
    """Says on standard error that a run's training did not come to its end, and how it goes on.

    Says nothing of a run that cannot be read: the command itself does, if it needs what is wrong.
    """
    from kepsvgp.errors import UserError, printable
    from kepsvgp.runs.folder import RunFolder

    folder = RunFolder(run)
    missing = None
    with suppress(UserError):
        missing = folder.unfinished()
    if missing is not None:
        command = ["kepsvgp", "train", str(folder.config_file), "--out", str(run), "--resume"]
        line = f"{run} {missing}; continue with `{shlex.join(command)}`"
        typer.echo(printable(line), err=True)
