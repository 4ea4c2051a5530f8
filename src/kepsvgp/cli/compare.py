"""`kepsvgp compare`: methods side by side on one data set."""

from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import CONFIG_HELP, DataRoot
from kepsvgp.cli.other import LabelColumn, TextColumn, is_other


def compare(
    config: Annotated[
        str,
        typer.Argument(
            help=f"{CONFIG_HELP} Or the first of several models, each a folder that "
            "save_pretrained wrote or a file of probabilities and labels."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Such as train.lr=1e-3. Or the other models and, if one is a folder, labelled "
            "data.",
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: msp, kep, sgpa, primal, sngp, svdkl, matched_noise; "
            "temperature, mc_dropout, kfllla, ensemble; or both as in kep+temperature or "
            "kep+refitted."
        ),
    ] = "msp,temperature,mc_dropout,kep,kep+temperature",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every trained method.")] = 1,
    splits: Annotated[
        str,
        typer.Option(help="Comma-separated: val, test, shift, ood, or one like shift/fog/5."),
    ] = "test",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; runs/compare-<config> by default.")
    ] = None,
    data_root: DataRoot = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
) -> None:
    """Train, fit and measure several methods on the same splits, and print one table.

    What is there already is not done again, so methods and seeds can be added later. Models that
    are there are asked about the same labelled data, with intervals of their differences.
    """
    given = [Path(path) for path in (config, *(overrides or ()))]
    if is_other(given):
        from kepsvgp.cli.results import show_tested
        from kepsvgp.serving.tested import open_tested

        tested = open_tested(given, text_column=text_column, label_column=label_column)
        show_tested(tested, compared=True)
        return

    from rich.console import Console

    from kepsvgp.cli.results import show_comparison
    from kepsvgp.config.file import find_config, load_config
    from kepsvgp.config.plugins import find_method
    from kepsvgp.data import load_benchmark
    from kepsvgp.methods.compare import compare

    changes = [*(overrides or []), *([f"data.root={data_root}"] if data_root else [])]
    # first, as the configuration may have sections for them
    chosen = [find_method(name) for name in methods.split(",")]
    settings = load_config(config, changes)
    folder = out or Path("runs") / f"compare-{find_config(config).stem}"
    comparison = compare(
        settings,
        load_benchmark(settings.data),
        folder,
        methods=chosen,
        num_seeds=seeds,
        splits=splits.split(","),
        console=Console(stderr=True),
    )
    show_comparison(comparison, folder)
