"""`kepsvgp reproduce`: the paper's tables and figures, from nothing or from what is there."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kepsvgp.cli.command import CheckpointOption, DataRoot, VariantOption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kepsvgp.paper.plan import PlannedExhibit
    from kepsvgp.paper.sweep import Sweep


class Profile(StrEnum):
    """How much is spent."""

    paper = "paper"
    small = "small"


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT... [KEY=VALUE]...",
            help="table1 … table9, figure2 … figure5, all of these, study-cola and others, "
            "studies for all of these, or defaults; then changes to every configuration.",
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
    variant: VariantOption = "ours",
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
    checkpoint: CheckpointOption = None,
    out: Annotated[Path, typer.Option(help="Where runs, tables and figures go.")] = Path("runs"),
    data_root: DataRoot = None,
    resamples: Annotated[
        int, typer.Option(min=1, help="Bootstrap resamples of each comparison.")
    ] = 1000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is to do, and do nothing.")
    ] = False,
) -> None:
    """Make tables and figures of the paper.

    Only runs that are missing under --out are trained; tables share them. A sweep that was
    interrupted goes on where it was. The tables show ours beside the paper's numbers.
    """
    import os

    from kepsvgp.paper.declarations import PaperTable
    from kepsvgp.paper.request import plan_request
    from kepsvgp.paper.sweep import Sweep
    from kepsvgp.runs.weights import as_checkpoint

    if data_root is not None:
        os.environ["KEPSVGP_DATA"] = str(data_root.resolve())
    plan = plan_request(
        tuple(what),
        dataset=dataset,
        seeds=seeds,
        profile=profile.value,
        variant=variant,
        config=config,
        rows=() if rows is None else tuple(rows.split(",")),
        checkpoint=None if checkpoint is None else as_checkpoint(checkpoint),
    )
    sweep = Sweep(plan, out)
    if dry_run:
        _show_plan(sweep, jobs)
        return
    threads = threads or (1 if ray is not None or jobs > 1 else None)
    failed = _run(sweep, jobs=jobs, ray=ray, threads=threads)
    for planned in sweep.plan.exhibits:
        if isinstance(planned.exhibit, PaperTable):
            _write_table(planned, sweep, resamples)
        else:
            _write_figure(planned, sweep)
    _write_reports(sweep)
    if failed:
        typer.echo(f"{failed} jobs failed", err=True)
        raise typer.Exit(1)


def _show_plan(sweep: "Sweep", jobs: int) -> None:
    """What there is, what is left and how long it may take."""
    from kepsvgp.data.progress import clock
    from kepsvgp.paper.costs import paper_hours

    for planned in sweep.plan.exhibits:
        typer.echo(f"{planned.exhibit.name}, {planned.study.dataset}: {_extent(planned)}")
    for task in sweep.plan.tasks:
        typer.echo(f"  {task.name}: {_left_words(sweep, task.name) or 'done'}")
    to_measure = sweep.timings_left
    for timing in sweep.plan.timings:
        typer.echo(f"  timing {timing.name}: {'to measure' if timing in to_measure else 'done'}")
    guess = sweep.estimate(jobs=jobs)
    time = f"about {clock(guess.seconds)}"
    if guess.unknown and not guess.seconds:
        time = "for how long is unknown, as there is no such run here yet"
    elif guess.unknown:
        time += (
            f" and {guess.unknown} pieces of work of unknown time, as none like them is here yet"
        )
    every = sweep.plan.tasks
    typer.echo(f"{len(sweep.tasks_left)} of {len(every)} runs left, {time}")
    hours = paper_hours(every)
    if hours is not None and all(p.study.budget == "paper" for p in sweep.plan.exhibits):
        typer.echo(f"all of it at the paper's speed on a V100: about {hours:.1f} h of training")


def _extent(planned: "PlannedExhibit") -> str:
    """The rows by name, and the number of columns."""
    from kepsvgp.paper.declarations import PaperTable

    rows = ", ".join(f"{row.group} {row.title}".strip() for row in planned.rows)
    if not isinstance(planned.exhibit, PaperTable):
        return rows
    return f"{rows} × {len(planned.exhibit.columns_for(planned.study.dataset))} columns"


def _left_words(sweep: "Sweep", name: str) -> str:
    left, words = sweep.left[name], []
    if left.epochs:
        words.append(f"{left.epochs} epochs to train")
    if left.evaluations:
        words.append(f"{len(left.evaluations)} evaluations")
    if left.inspection:
        words.append("inspection")
    reason = sweep.root.failure(name) if words else None
    return ", ".join(words if reason is None else [*words, f"failed before: {reason}"])


def _run(sweep: "Sweep", *, jobs: int, ray: str | None, threads: int | None) -> int:
    """Does what is left, and tells of each job; gives the number of those that failed."""
    from kepsvgp.data.progress import clock
    from kepsvgp.paper.runner import local_processes, ray_cluster, run_jobs

    tasks, timings = sweep.tasks_left, sweep.timings_left
    total = len(tasks) + len(timings)
    if total == 0:
        return 0
    out = sweep.root.path
    out.mkdir(parents=True, exist_ok=True)
    workers = (
        local_processes(out, jobs=jobs, threads=threads)
        if ray is None
        else ray_cluster(out, ray, threads=threads or 1)
    )
    failed = 0
    with workers as submit:
        outcomes = run_jobs(tasks, timings, sweep.root, submit)
        for done, outcome in enumerate(outcomes, start=1):
            sweep.ended(outcome.name)
            failed += outcome.reason is not None
            how = f"failed: {outcome.reason}" if outcome.reason else f"{clock(outcome.seconds)}"
            rest = sweep.estimate(jobs=jobs)
            ahead = "" if rest.unknown or done == total else f", about {clock(rest.seconds)} left"
            typer.echo(f"[{done}/{total}] {outcome.name}: {how}{ahead}", err=True)
    return failed


def _write_table(planned: "PlannedExhibit", sweep: "Sweep", resamples: int) -> None:
    from kepsvgp.cli.results import show_filled
    from kepsvgp.paper.formats import write_table

    show_filled(write_table(planned, sweep.root, resamples=resamples))
    stem = sweep.root.path / "tables" / planned.stem
    typer.echo(f"written: {stem}.md, .csv, .tex, .json\n")


def _write_figure(planned: "PlannedExhibit", sweep: "Sweep") -> None:
    from kepsvgp.paper.figures import write_figure_data
    from kepsvgp.report.figures import save_figure

    found = write_figure_data(planned, sweep.root)
    typer.echo(f"{found.title}\n" + "\n".join(f"- {note}" for note in found.notes))
    if not any(found.data.values()):
        typer.echo("nothing to draw\n")
        return
    figure = _draw(planned.exhibit.name, found.data)
    paths = save_figure(figure, sweep.root.path / "figures", planned.stem)
    typer.echo(f"written: {', '.join(map(str, paths))}\n")


def _draw(name: str, data: dict[str, Any]) -> "Figure":
    from kepsvgp.report import figures
    from kepsvgp.runs.inspection import Inspection

    match name:
        case "figure2":
            return figures.shift_bars(data)
        case "figure3":
            return figures.confidence_separation(data)
        case "figure4":
            spectra = {model: Inspection.model_validate(values) for model, values in data.items()}
            return figures.kernel_spectra(spectra)
        case _:
            return figures.shift_lines(data, metric="AURC × 1000, mean of all severities")


def _write_reports(sweep: "Sweep") -> None:
    """Writes a report page over the finished runs of each data set."""
    from kepsvgp.paper.sweep import reported_runs
    from kepsvgp.report import write_report

    studies = {planned.study.dataset: planned.study for planned in sweep.plan.exhibits}
    for dataset, study in studies.items():
        wanted = [p for p in sweep.plan.exhibits if p.study.dataset == dataset]
        runs = reported_runs(wanted, sweep)
        if runs:
            page = sweep.root.path / f"report-{wanted[0].of_study}.html"
            write_report(runs, page, checkpoint=study.checkpoint)
            typer.echo(f"report page: {page}")
