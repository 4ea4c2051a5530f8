"""The command line. Commands import what they need when they run, so that help is instant."""

import io
import sys
import warnings
from importlib.metadata import version
from typing import Annotated

import typer

from kepsvgp.cli.command import Command, Group
from kepsvgp.cli.compare import compare
from kepsvgp.cli.convert import convert
from kepsvgp.cli.data import app as data
from kepsvgp.cli.demo import demo
from kepsvgp.cli.evaluate import evaluate
from kepsvgp.cli.inspect import inspect
from kepsvgp.cli.interrupt import INTERRUPTED, MESSAGE
from kepsvgp.cli.predict import predict
from kepsvgp.cli.refit import refit
from kepsvgp.cli.report import report
from kepsvgp.cli.reproduce import reproduce
from kepsvgp.cli.serve import serve
from kepsvgp.cli.train import train
from kepsvgp.errors import UserError, printable

app = typer.Typer(
    name="kepsvgp",
    cls=Group,
    help="Transformers that know when they don't know.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"kepsvgp {version('kepsvgp')}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Transformers that know when they don't know."""


app.command(cls=Command)(demo)
app.command(cls=Command)(train)
app.command(cls=Command)(evaluate)
app.command(cls=Command)(convert)
app.command(cls=Command)(predict)
app.command(cls=Command)(serve)
app.command(cls=Command)(refit)
app.command(cls=Command)(inspect)
app.command(cls=Command)(compare)
app.command(cls=Command)(report)
app.command(cls=Command)(reproduce)
app.add_typer(data)


def main() -> None:
    """Runs the command line; a user's mistake is one message and exit code 2."""
    # what the terminal or the file behind it cannot encode is written out
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _fail(
            f"the memory does not suffice ({str(error).partition(chr(10))[0] or 'of this machine'})"
            ". Take a smaller model, fewer samples or smaller batches."
        )
    except OSError as error:
        # a folder that may not be written to, a disk that is full or gone
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}. Mend this, then run the same command again.")
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        typer.echo(MESSAGE, err=True)
        sys.exit(INTERRUPTED)


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    # where in the code it arose helps no user
    typer.echo(f"warning: {printable(str(message))}", err=True)


def _is_out_of_memory(error: Exception) -> bool:
    # torch has an exception of its own for GPUs alone
    words = ("allocate memory", "enough memory", "out of memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _fail(message: str) -> None:
    # names and texts of strangers must not command the terminal
    typer.echo(f"error: {printable(message)}", err=True)
    sys.exit(2)
