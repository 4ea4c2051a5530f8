"""`kepsvgp data`: what data sets there are, getting them, and checking them."""

from typing import TYPE_CHECKING, Annotated

import typer

from kepsvgp.cli.command import Command, DataRoot, Group

if TYPE_CHECKING:
    from kepsvgp.data.download.catalogue import DataSet

app = typer.Typer(
    name="data",
    cls=Group,
    help="List, fetch and verify the paper's data sets.",
    no_args_is_help=True,
)

Names = Annotated[
    list[str] | None, typer.Argument(help="Names of data sets; all if none is given.")
]


# the one data set that is no file of a publisher
_DIGITS = "digits"
_NO_FILE = "comes with scikit-learn, no file needed"


def _meant(names: list[str] | None) -> "tuple[bool, list[DataSet]]":
    """Whether these names, or none, mean the digits, and which data sets of publishers."""
    from kepsvgp.data.download import catalogue

    others = [name for name in names or [] if name != _DIGITS]
    found = catalogue.find(others) if others or not names else []
    return not names or _DIGITS in names, found


@app.command("list", cls=Command)
def list_(names: Names = None, data_root: DataRoot = None) -> None:
    """Say which data sets there are, which are here, and which file goes where."""
    from kepsvgp.data import store

    root = store.data_root(data_root)
    has_digits, found = _meant(names)
    typer.echo(f"data sets under {root}")
    if has_digits:
        typer.echo(f"\n{_DIGITS}\n  here      {_NO_FILE}")
    for data_set in found:
        missing = data_set.missing(root)
        if not missing:
            state = f"yes       {data_set.folder}"
        elif (root / data_set.folder).exists():
            state = f"in part   {data_set.folder} lacks {missing[0].relative_to(root)}"
        else:
            state = "no"
        size = f"  ({data_set.size / 1e6:.0f} MB)" if data_set.size else ""
        typer.echo(f"\n{data_set.name}\n  what      {data_set.title}\n  here      {state}")
        typer.echo(f"  from      {data_set.url}{size}\n  md5       {data_set.md5}")
        typer.echo(f"  or put it to {data_set.archive_path(root)}")


@app.command(cls=Command)
def fetch(
    names: Annotated[list[str], typer.Argument(help="Names of data sets.")],
    data_root: DataRoot = None,
    url: Annotated[
        str | None, typer.Option(help="Another address of the same file (a mirror).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the archive after unpacking.")] = False,
) -> None:
    """Download data sets from their publishers; an interrupted download goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    from kepsvgp.data import store
    from kepsvgp.data.download import catalogue
    from kepsvgp.data.download.fetch import fetch as fetch_one
    from kepsvgp.errors import UserError

    root = store.data_root(data_root)
    chosen = catalogue.find(names)
    if url is not None and len(chosen) != 1:
        raise UserError(f"--url is for one data set at a time; got {len(chosen)}.")
    console = Console(stderr=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    for data_set in chosen:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            task = bars.add_task(data_set.name, total=None)

            def show(done: int, total: int, bars=bars, task=task) -> None:
                bars.update(task, completed=done, total=total or None)

            new = fetch_one(data_set, root, url=url, keep=keep, on_progress=show)
        typer.echo(f"{data_set.name}: {'fetched' if new else 'already'} in {root}")


@app.command(cls=Command)
def verify(names: Names = None, data_root: DataRoot = None) -> None:
    """Read what is here and say whether it is the official file.

    Exits with code 1 if a file is damaged, or missing although its data set was named.
    """
    from kepsvgp.data import store
    from kepsvgp.data.download.verify import verify as verify_one
    from kepsvgp.errors import printable

    root = store.data_root(data_root)
    has_digits, chosen = _meant(names)
    typer.echo(f"data sets under {root}")
    bad = False
    if has_digits:
        typer.echo(f"\n{_DIGITS}\n  {_NO_FILE}")
    for data_set in chosen:
        typer.echo(f"\n{data_set.name}")
        for found in verify_one(data_set, root):
            remark = f"  ({found.remark})" if found.remark else ""
            typer.echo(printable(f"  {found.state:<13} {found.name}{remark}"))
            bad |= found.state == "damaged" or (bool(names) and found.state == "missing")
    if bad:
        raise typer.Exit(1)
