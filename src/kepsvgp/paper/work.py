"""One task, from whatever its run folder holds to everything that was asked of it."""

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from kepsvgp.config.plugins import find_method
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.data.benchmark import Note
from kepsvgp.errors import UserError
from kepsvgp.paper.findings import inspected
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.paper.plan import Ask, Task
from kepsvgp.paper.records import (
    Record,
    ask_key,
    is_answered,
    read_record,
    write_record,
)
from kepsvgp.runs.evaluation import measure
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import as_checkpoint


def perform(task: Task, out: Path, console: Console | None = None) -> dict[str, str]:
    """Trains what is not trained, answers what is not answered, and does nothing twice.

    An ask that fails does not keep the others from being answered; why it failed is returned,
    and remembered with the run.
    """
    run = RunFolder(out / task.name)
    benchmark = load_benchmark(task.config.data)
    if not run.is_finished():
        start = time.perf_counter()
        method = find_method(task.config.method)
        method.train(task.config, benchmark, run.path, resume=True, console=console)
        _remember(run, "train", start)
    steps: dict[str, Callable[[], list[str]]] = {
        ask_key(ask): partial(answer, run, benchmark, ask, console)
        for ask in task.asks
        if not is_answered(run, ask, read_record(run))
    }
    if task.inspected is not None and inspected(run, task.inspected) is None:
        steps["inspect"] = partial(_inspect, run, benchmark, task.inspected)
    failed = {}
    for step, do in steps.items():
        start = time.perf_counter()
        try:
            _remember(run, step, start, do(), benchmark.notes)
        except Exception as error:
            failed[step] = _told(error)
            _remember(run, step, start, reason=failed[step])
    return failed


def _told(error: Exception) -> str:
    """An error in one line; what is not a user's mistake goes to the log in full."""
    if isinstance(error, UserError):
        return str(error)
    traceback.print_exc()
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]


def answer(run: RunFolder, benchmark: Benchmark, ask: Ask, console: Console | None) -> list[str]:
    """Predicts and measures the sets of one ask that have no metrics yet; gives all its sets."""
    names = selected(benchmark, ask.splits)
    method, checkpoint = find_method(ask.method), as_checkpoint(ask.checkpoint)
    measure(run, method, benchmark, names, checkpoint=checkpoint, console=console)
    return names


def selected(benchmark: Benchmark, selector: str) -> list[str]:
    """The sets that a selector means; see `plan.SELECTORS`."""
    if selector == "shift":
        return [f"shift/{name}" for name in benchmark.shifts]
    if selector == "shift@5":
        # shifts without degrees have no worst
        every = list(benchmark.shifts)
        worst = [name for name in every if name.endswith("/5")] or every
        return [f"shift/{name}" for name in worst]
    if selector == "ood":
        return [f"ood/{name}" for name in benchmark.ood]
    return [selector]


def _inspect(run: RunFolder, benchmark: Benchmark, checkpoint: str) -> list[str]:
    inspect_run(run, benchmark, checkpoint=as_checkpoint(checkpoint))
    return ["test"]


def _remember(
    run: RunFolder,
    step: str,
    start: float,
    sets: list[str] | None = None,
    notes: Sequence[Note] | None = None,
    reason: str | None = None,
) -> None:
    """Adds to what the run remembers: how long a step took, and how it ended."""
    known = read_record(run)
    failed = {name: why for name, why in known.failed.items() if name != step}
    if reason is not None:
        write_record(run, known._replace(failed=failed | {step: reason}))
        return
    answered = known.answered if sets is None else known.answered | {step: sets}
    taken = known.seconds | {step: time.perf_counter() - start}
    notes = known.notes if notes is None else tuple(notes)
    write_record(run, Record(answered, taken, failed, notes))
