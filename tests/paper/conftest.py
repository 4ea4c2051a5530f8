import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sweeps import TINY

from kepsvgp.metrics import UndefinedMetricWarning
from kepsvgp.paper.chosen import choose, find
from kepsvgp.paper.filled import FilledTable, fill_table
from kepsvgp.paper.plan import Plan, PlannedExhibit, Task, make_plan
from kepsvgp.paper.records import OutputRoot
from kepsvgp.paper.study import Study
from kepsvgp.paper.tables import NAMES
from kepsvgp.paper.timing import measure_times
from kepsvgp.paper.work import perform


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of the digits that trains in a moment."""
    path = tmp_path_factory.mktemp("configs") / "tiny.toml"
    path.write_text(TINY)
    return path


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Jobs are done in the output root, as their processes are."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Swept:
    """Every table and figure of the paper on tiny digits, done in this process."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.out, self.root = plan, out, OutputRoot(out)
        self._filled: dict[str, FilledTable] = {}

    def planned(self, name: str) -> PlannedExhibit:
        return next(each for each in self.plan.exhibits if each.exhibit.name == name)

    def study(self) -> Study:
        return self.plan.exhibits[0].study

    def tasks(self, name: str) -> tuple[Task, ...]:
        return make_plan([find(name)], "digits", lambda *_: self.study()).tasks

    def filled(self, name: str) -> FilledTable:
        if name not in self._filled:
            self._filled[name] = fill_table(self.planned(name), self.root, resamples=50)
        return self._filled[name]


@pytest.fixture(scope="session")
def swept(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    out = tmp_path_factory.mktemp("swept")
    study = Study(dataset="digits", seeds=2, file=tiny)
    # seventy-five sets for each method that is measured on shifts: two will do
    few = ["msp", "kep", "deep_ensembles", "kep_ensembles"]
    rows = {"table2": few, "figure5": few, "defaults": ["msp", "landmark", "dual"]}
    exhibits = [choose([name], rows.get(name, []))[0] for name in (*NAMES, "defaults")]
    plan = make_plan(exhibits, "digits", lambda *_: study)
    with inside(out), warnings.catch_warnings():
        # sixteen images under a corruption may all be wrong
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for task in plan.tasks:
            assert perform(task, Path()) == {}
        for timing in plan.timings:
            measure_times(timing, Path())
    return Swept(plan, out)
