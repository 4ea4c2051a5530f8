"""`kepsvgp reproduce`: the paper's tables and figures, from nothing or from what is there."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kepsvgp.paper.figures import FigureData
    from kepsvgp.paper.sweep import Jobs, Piece


class Profile(StrEnum):
    """How much is spent."""

    paper = "paper"
    small = "small"


class Weights(StrEnum):
    """Which weights of a run are measured."""

    last = "last"
    score = "score"
    nll = "nll"


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT... [KEY=VALUE]...",
            help="table1 … table9, figure2 … figure5, all of these, or defaults; then changes to "
            "every configuration.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, cifar10, cifar100, imdb or cola; those of the paper by default."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 5,
    profile: Annotated[
        Profile, typer.Option(help="The paper's budget, or one for a small machine.")
    ] = Profile.paper,
    config: Annotated[
        Path | None,
        typer.Option(help="Another configuration than the profile's: a file, or a shipped name."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster instead.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each process; 1 with --jobs > 1 or --ray, else all."),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Only these methods, comma-separated, such as msp,kep.")
    ] = None,
    checkpoint: Annotated[
        Weights | None, typer.Option(help="Measure these weights; what the run selected if none.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs, tables and figures go.")] = Path("runs"),
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
    resamples: Annotated[
        int, typer.Option(min=1, help="Bootstrap resamples of each comparison.")
    ] = 1000,
    evidence: Annotated[
        Path | None,
        typer.Option(
            help="Also copy tables, figures and the configurations, metrics and histories of their "
            "runs there, without weights."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is to do, and do nothing.")
    ] = False,
) -> None:
    """Make tables and figures of the paper.

    Only runs that are missing under --out are trained; tables share them. A sweep that was
    interrupted goes on where it was. The tables show ours beside the paper's numbers.
    """
    import os

    from kepsvgp.config.file import find_config, load_config
    from kepsvgp.paper import sweep
    from kepsvgp.paper.plan import Study, check_overrides

    file = None if config is None else find_config(config).resolve()
    if file is not None:
        dataset = dataset or load_config(file).data.name
    if data_root is not None:
        os.environ["KEPSVGP_DATA"] = str(data_root.resolve())
    names = [name for name in what if "=" not in name]
    overrides = tuple(name for name in what if "=" in name)
    check_overrides(overrides)

    def study_of(name: str) -> Study:
        return Study(
            dataset=name,
            profile=profile.value,
            seeds=seeds,
            checkpoint=None if checkpoint is None else checkpoint.value,
            overrides=overrides,
            file=file,
        )

    found = sweep.exhibits(names, [] if rows is None else rows.split(","))
    wanted = sweep.pieces(found, dataset, study_of)
    every = sweep.jobs_of(wanted)
    left = sweep.left_jobs(every, out)
    if dry_run:
        _show_plan(wanted, every, left, out, jobs)
        return
    threads = threads or (1 if ray is not None or jobs > 1 else None)
    failed = _run(left, out, jobs=jobs, ray=ray, threads=threads)
    for piece in wanted:
        _write(piece, out, resamples)
    for name in dict.fromkeys(piece.study.dataset for piece in wanted):
        _write_report([piece for piece in wanted if piece.study.dataset == name], out)
    if evidence is not None:
        from kepsvgp.paper.evidence import keep_evidence

        count = len(keep_evidence(wanted, out, evidence))
        typer.echo(f"evidence: {count} files in {evidence}")
    if failed:
        typer.echo(f"{failed} of {len(left.tasks) + len(left.timings)} jobs failed", err=True)
        raise typer.Exit(1)


def _show_plan(wanted: "list[Piece]", every: "Jobs", left: "Jobs", out: Path, jobs: int) -> None:
    """What there is, what is left and how long it may take."""
    from kepsvgp.data.progress import clock
    from kepsvgp.paper.declarations import Table
    from kepsvgp.paper.plan import rows_of
    from kepsvgp.paper.records import estimate, failure, left_of, paper_hours

    for piece in wanted:
        count = len(rows_of(piece.exhibit, piece.study.dataset))
        cells = f"{count} rows"
        if isinstance(piece.exhibit, Table):
            cells += f" × {len(piece.exhibit.columns_for(piece.study.dataset))} columns"
        typer.echo(f"{piece.exhibit.name}, {piece.study.dataset}: {cells}")
    for task in every.tasks:
        rest = left_of(task, out)
        words = []
        if rest.epochs:
            words.append(f"{rest.epochs} epochs to train")
        if rest.asks:
            words.append(f"{len(rest.asks)} evaluations")
        if rest.inspection:
            words.append("inspection")
        reason = failure(out, task.name)
        if reason and words:
            words.append(f"failed before: {reason}")
        typer.echo(f"  {task.name}: {', '.join(words) or 'done'}")
    for timing in every.timings:
        state = "to measure" if timing in left.timings else "done"
        typer.echo(f"  timing {timing.name}: {state}")
    guess = estimate(left.tasks, out, jobs=jobs)
    time = f"about {clock(guess.seconds)}"
    if guess.unknown and not guess.seconds:
        time = "for how long is unknown, as there is no such run here yet"
    elif guess.unknown:
        time += (
            f" and {guess.unknown} pieces of work of unknown time, as none like them is here yet"
        )
    typer.echo(f"{len(left.tasks)} of {len(every.tasks)} runs left, {time}")
    hours = paper_hours(every.tasks)
    if hours is not None and all(piece.study.budget == "paper" for piece in wanted):
        typer.echo(f"all of it at the paper's speed on a V100: about {hours:.1f} h of training")


def _run(left: "Jobs", out: Path, *, jobs: int, ray: str | None, threads: int | None) -> int:
    """Does what is left, and tells of each job; gives the number of those that failed."""
    from kepsvgp.data.progress import clock
    from kepsvgp.paper.records import estimate
    from kepsvgp.paper.runner import local_processes, ray_cluster, run_jobs

    total = len(left.tasks) + len(left.timings)
    if total == 0:
        return 0
    out.mkdir(parents=True, exist_ok=True)
    workers = (
        local_processes(out, jobs=jobs, threads=threads)
        if ray is None
        else ray_cluster(out, ray, threads=threads or 1)
    )
    failed = done = 0
    with workers as submit:
        for outcome in run_jobs(left.tasks, left.timings, out, submit):
            done += 1
            failed += outcome.reason is not None
            how = f"failed: {outcome.reason}" if outcome.reason else f"{clock(outcome.seconds)}"
            rest = estimate(left.tasks, out, jobs=jobs)
            ahead = "" if rest.unknown or done == total else f", about {clock(rest.seconds)} left"
            typer.echo(f"[{done}/{total}] {outcome.name}: {how}{ahead}", err=True)
    return failed


def _write(piece: "Piece", out: Path, resamples: int) -> None:
    """Writes a table or figure and says where it is."""
    from kepsvgp.paper.declarations import Table
    from kepsvgp.paper.formats import markdown
    from kepsvgp.paper.sweep import write_figure_data, write_table
    from kepsvgp.report.figures import save_figure

    if isinstance(piece.exhibit, Table):
        filled = write_table(piece, out, resamples=resamples)
        typer.echo(markdown(filled))
        typer.echo(f"written: {out / 'tables' / piece.stem}.md, .csv, .tex, .json\n")
        return
    found = write_figure_data(piece, out)
    typer.echo(f"{found.title}\n" + "\n".join(f"- {note}" for note in found.notes))
    if any(found.data.values()):
        paths = save_figure(_draw(found), out / "figures", piece.stem)
        typer.echo(f"written: {', '.join(map(str, paths))}\n")
    else:
        typer.echo("nothing to draw\n")


def _write_report(wanted: "list[Piece]", out: Path) -> None:
    """Writes the report page over the finished runs of a data set, and says where it is."""
    from kepsvgp.paper.sweep import reported_runs
    from kepsvgp.report import write_report

    runs = reported_runs(wanted, out)
    if runs:
        study = wanted[0].study
        page = out / f"report-{study.dataset}-{study.budget}.html"
        write_report(runs, page, checkpoint=study.checkpoint)
        typer.echo(f"report page: {page}")


def _draw(found: "FigureData") -> "Figure":
    import numpy as np

    from kepsvgp.report import figures
    from kepsvgp.runs.inspection import Inspection

    match found.figure.name:
        case "figure2":
            return figures.shift_bars(found.data)
        case "figure3":
            groups = {
                model: {name: np.array(values) for name, values in parts.items()}
                for model, parts in found.data.items()
            }
            return figures.confidence_separation(groups)
        case "figure4":
            return figures.kernel_spectra(
                {model: Inspection.model_validate(values) for model, values in found.data.items()}
            )
        case _:
            title = "AURC × 1000, mean of all severities"
            return figures.shift_lines(found.data, metric=title)
