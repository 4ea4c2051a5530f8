"""The command line. Commands import what they need when they run, so that help is instant."""

import sys

import typer

from kepsvgp.cli.bench import bench
from kepsvgp.cli.compare import compare
from kepsvgp.cli.data import app as data
from kepsvgp.cli.evaluate import evaluate
from kepsvgp.cli.inspect import inspect
from kepsvgp.cli.report import report
from kepsvgp.cli.train import train
from kepsvgp.errors import UserError

app = typer.Typer(
    name="kepsvgp",
    help="Transformers that know when they don't know.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Transformers that know when they don't know."""


app.command()(train)
app.command()(evaluate)
app.command()(inspect)
app.command()(compare)
app.command()(report)
app.command()(bench)
app.add_typer(data)


def main() -> None:
    """Runs the command line; a user's mistake is one message and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
