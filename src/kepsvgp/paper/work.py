"""One task, from whatever its run folder holds to everything that was asked of it."""

import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from kepsvgp.config.plugins import find_asked, find_method
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.data.benchmark import Note
from kepsvgp.errors import UserError
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.paper.plan import Evaluation, Task
from kepsvgp.paper.records import RunState, left_of, read_record, write_record
from kepsvgp.runs.evaluation import measure, split_names
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import as_checkpoint


def perform(task: Task, out: Path, console: Console | None = None) -> dict[str, str]:
    """Trains what is not trained, measures what is not measured, and does nothing twice.

    An evaluation that fails does not keep the others from being made; why it failed is
    returned, and remembered with the run.
    """
    run = RunFolder(out / task.name)
    benchmark = load_benchmark(task.config.data)
    if not run.is_finished():
        start = time.perf_counter()
        method = find_method(task.config.method)
        method.train(task.config, benchmark, run.path, resume=True, console=console)
        _remember(run, "train", start)
    left = left_of(task, RunState(run.path))
    steps: dict[str, Callable[[], list[str]]] = {
        each.key: partial(measure_missing, run, benchmark, each, console)
        for each in left.evaluations
    }
    if left.inspection and task.inspected is not None:
        steps["inspect"] = partial(_inspect, run, benchmark, task.inspected)
    failed = {}
    for step, do in steps.items():
        start = time.perf_counter()
        try:
            _remember(run, step, start, do(), benchmark.notes)
        except Exception as error:
            failed[step] = _in_one_line(error)
            known = read_record(run)
            write_record(run, known._replace(failed=known.failed | {step: failed[step]}))
    return failed


def _in_one_line(error: Exception) -> str:
    """What went wrong; what is not a user's mistake goes to the log in full."""
    if isinstance(error, UserError):
        return str(error)
    traceback.print_exc()
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]


def measure_missing(
    run: RunFolder, benchmark: Benchmark, wanted: Evaluation, console: Console | None
) -> list[str]:
    """Predicts and measures the sets of an evaluation that are not yet; gives all its sets."""
    names = selected(benchmark, wanted.splits)
    method = find_asked(run.config().method, wanted.method)
    checkpoint = as_checkpoint(wanted.checkpoint)
    measure(run, method, benchmark, names, checkpoint=checkpoint, console=console)
    return names


def selected(benchmark: Benchmark, selector: str) -> list[str]:
    """The sets that a selector means; see `plan.Evaluation`."""
    if selector == "shift@5":
        # shifts without degrees have no worst
        every = list(benchmark.shifts)
        worst = [name for name in every if name.endswith("/5")] or every
        return [f"shift/{name}" for name in worst]
    return split_names(benchmark, [selector])


def _inspect(run: RunFolder, benchmark: Benchmark, checkpoint: str) -> list[str]:
    inspect_run(run, benchmark, checkpoint=as_checkpoint(checkpoint))
    return ["test"]


def _remember(
    run: RunFolder,
    step: str,
    start: float,
    sets: list[str] | None = None,
    notes: tuple[Note, ...] = (),
) -> None:
    """Adds to what the run remembers: how long a step took, and what it measured."""
    known = read_record(run)
    write_record(
        run,
        known._replace(
            answered=known.answered if sets is None else known.answered | {step: sets},
            seconds=known.seconds | {step: time.perf_counter() - start},
            failed={name: why for name, why in known.failed.items() if name != step},
            notes=notes or known.notes,
        ),
    )
