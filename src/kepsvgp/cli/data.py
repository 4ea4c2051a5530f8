"""`kepsvgp data`: what data sets there are, getting them, and checking them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="data", help="List, fetch and verify the paper's data sets.", no_args_is_help=True
)

Names = Annotated[
    list[str] | None, typer.Argument(help="Names of data sets; all if none is given.")
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder of the data sets; otherwise KEPSVGP_DATA, else one in the user's cache.",
    ),
]


@app.command("list")
def list_(names: Names = None, data_root: Root = None) -> None:
    """Say which data sets there are, which are here, and which file goes where."""
    from kepsvgp.data import catalogue, store

    root = store.data_root(data_root)
    typer.echo(f"data sets under {root}")
    typer.echo("\ndigits\n  here      comes with scikit-learn, no file needed")
    for data_set in catalogue.find(names or []):
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


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Names of data sets.")],
    data_root: Root = None,
    url: Annotated[
        str | None, typer.Option(help="Another address of the same file (a mirror).")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the archive after unpacking.")] = False,
) -> None:
    """Download data sets from their publishers; an interrupted download goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    from kepsvgp.data import catalogue, store
    from kepsvgp.data.fetch import fetch as fetch_one
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


@app.command()
def verify(names: Names = None, data_root: Root = None) -> None:
    """Read what is here and say whether it is the official file.

    Exits with code 1 if a file is damaged, or missing although its data set was named.
    """
    from kepsvgp.data import catalogue, store
    from kepsvgp.data.verify import verify as verify_one
    from kepsvgp.errors import printable

    root = store.data_root(data_root)
    typer.echo(f"data sets under {root}")
    bad = False
    for data_set in catalogue.find(names or []):
        typer.echo(f"\n{data_set.name}")
        for found in verify_one(data_set, root):
            remark = f"  ({found.remark})" if found.remark else ""
            typer.echo(printable(f"  {found.state:<13} {found.name}{remark}"))
            bad |= found.state == "damaged" or (bool(names) and found.state == "missing")
    if bad:
        raise typer.Exit(1)
