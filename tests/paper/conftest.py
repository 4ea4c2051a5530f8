import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sweeps import TINY

from kepsvgp.metrics import UndefinedMetricWarning
from kepsvgp.paper import sweep
from kepsvgp.paper.declarations import Table
from kepsvgp.paper.filled import Filled, fill_table
from kepsvgp.paper.plan import Study, Task
from kepsvgp.paper.sweep import Piece
from kepsvgp.paper.tables import NAMES
from kepsvgp.paper.timing import measure
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

    def __init__(self, out: Path, pieces: list[Piece]) -> None:
        self.out, self.pieces = out, pieces
        self._filled: dict[str, Filled] = {}

    def piece(self, name: str) -> Piece:
        return next(piece for piece in self.pieces if piece.exhibit.name == name)

    def study(self) -> Study:
        return self.pieces[0].study

    def filled(self, name: str) -> Filled:
        if name not in self._filled:
            exhibit, study = self.piece(name)
            assert isinstance(exhibit, Table)
            self._filled[name] = fill_table(exhibit, study, self.out, resamples=50)
        return self._filled[name]


@pytest.fixture(scope="session")
def swept(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    out = tmp_path_factory.mktemp("swept")
    study = Study(dataset="digits", seeds=2, file=tiny)
    # seventy-five sets for each method that is asked about shifts: two will do
    few = ["msp", "kep", "deep_ensembles", "kep_ensembles"]
    rows = {"table2": few, "figure5": few, "defaults": ["msp", "landmark", "dual"]}
    exhibits = [sweep.exhibits([name], rows.get(name, []))[0] for name in (*NAMES, "defaults")]
    pieces = sweep.pieces(exhibits, "digits", lambda _: study)
    jobs = sweep.jobs_of(pieces)
    with inside(out), warnings.catch_warnings():
        # sixteen images under a corruption may all be wrong
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for job in (*jobs.tasks, *jobs.timings):
            if isinstance(job, Task):
                assert perform(job, Path()) == {}
            else:
                measure(job, Path())
    return Swept(out, pieces)
