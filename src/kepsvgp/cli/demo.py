"""`kepsvgp demo`: the main job in three minutes."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train softmax and KEP-SVGP Transformers on digits, compare them, and make a report."""
    import torch
    from rich.console import Console

    from kepsvgp.cli.results import say
    from kepsvgp.paper.demo import run_demo
    from kepsvgp.report import write_report

    # so small a model gains nothing from a second thread, and on a busy machine it waits for it
    torch.set_num_threads(1)
    console = Console(stderr=True)
    run_demo(out, console)
    folders = sorted(path.parent for path in out.glob("*/metrics.json"))
    page = write_report(folders, out / "report.html")
    say(Console(), f"report page: {page.resolve()}")
