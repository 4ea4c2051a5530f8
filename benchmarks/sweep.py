"""How long `kepsvgp reproduce --dry-run` takes to see what a folder of finished runs lacks."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.timing import Figures, Options
from kepsvgp.config.file import load_config
from kepsvgp.data.sets import ood
from kepsvgp.paper.plan import Evaluation, Plan, Task
from kepsvgp.paper.records import Left, RunState, write_record
from kepsvgp.paper.request import plan_request
from kepsvgp.paper.sweep import Sweep
from kepsvgp.paper.work import perform

FIRST, TEST = "first", Evaluation("msp", "last", "test")
MUST, WISH = 3.0, 1.0
TINY = ("train.epochs=1", "data.train_limit=64", "data.val_limit=32", "data.test_limit=32")


def measurements(options: Options) -> Iterator[Figures]:
    """One tiny run of the digits, under the names of 500 runs of the paper, all answered."""
    count = 5 if options.small else 500
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        config = load_config("digits-small", ["method=msp", *TINY])
        perform(Task(name=FIRST, config=config, evaluations=(TEST,)), out)
        plan = _everything()
        finished = plan.tasks[:count]
        for task in finished:
            _finish(task, out)
        sweep = Sweep(plan, out)
        assert all(sweep.left[task.name]._replace(inspection=False) == Left() for task in finished)
        seconds = [_seconds(out) for _ in range(1 if options.small else min(options.rounds, 5))]
    name = f"`reproduce --dry-run` of everything, {len(finished)} finished runs"
    yield Figures(name, {"seconds": float(np.median(seconds))}, {"seconds": (MUST, WISH)})


def _finish(task: Task, out: Path) -> None:
    """The tiny run under another name, with its predictions as answers to all that was asked."""
    shutil.copytree(out / FIRST, out / task.name)
    run = RunState(out / task.name)
    prediction = run.folder.prediction(TEST.checkpoint, TEST.method, TEST.splits)
    metrics = run.metrics[TEST.checkpoint][TEST.method][TEST.splits]
    answered = {}
    for each in task.evaluations:
        names = [f"ood/{name}" for name in ood.names_now(task.config.data)]
        names = answered[each.key] = names if each.splits == "ood" else [each.splits]
        for name in names:
            run.folder.write_prediction(each.checkpoint, each.method, name, prediction)
        run.folder.add_metrics(each.checkpoint, each.method, {name: metrics for name in names})
    write_record(run.folder, run.record._replace(answered=answered))


def _everything() -> Plan:
    # as many seeds as make 500 runs and more
    return plan_request(("all",), seeds=16)


def _seconds(out: Path) -> float:
    start = time.perf_counter()
    Sweep(_everything(), out).estimate()
    return time.perf_counter() - start
