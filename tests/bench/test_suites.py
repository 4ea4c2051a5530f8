"""The command, what it writes, and the page that is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sweep
from benchmarks.growth import Growth
from benchmarks.methods import measurements
from benchmarks.page import read, render
from benchmarks.timing import Contest, Figures, Limit, Options, Result
from benchmarks.traffic import Traffic

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.slow
def test_command_writes_what_it_measured(tmp_path: Path) -> None:
    quick = ["--small", "--rounds", "1", "--threads", "1", "--write", "--folder", str(tmp_path)]
    for suites in (["scaling"], ["predict"]):
        done = run(*suites, *quick)
        assert done.returncode == 0, done.stderr
    document = read(tmp_path / "results.json")
    # what was measured later stands beside what was there, in the order of the page
    assert list(document) == ["predict", "scaling"]
    assert document["predict"]["threads"] == 1
    first = document["predict"]["measured"][0]
    assert first["contenders"][first["baseline"]]["ratio"] == 1.0
    assert [limit["must"] for limit in first["limits"]] == [1.2, 1.6]
    assert document["scaling"]["measured"][0]["lengths"] == [256, 512, 1024]
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(
        measured["name"] in page for suite in document.values() for measured in suite["measured"]
    )


def test_kept_page_is_what_its_document_renders_to() -> None:
    folder = ROOT / "benchmarks"
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page == render(read(folder / "results.json"))


def test_page_shows_limits_kept_and_missed() -> None:
    results = {"a": Result((2.0,), (1.0,)), "b": Result((1.0,), (0.5,))}
    measured = {
        "layer": [Contest("quick", "a", results, (Limit("b", 0.8, 0.6),))],
        "train": [Contest("slow", "a", results, (Limit("b", 0.4),), "large")],
        "scaling": [Growth("growth", (1, 2, 4), (1.0, 2.0, 4.0), (1, 4, 16), must=1.1, wish=1.0)],
        "sweep": [Figures("sweep", {"seconds": 2.0, "runs": 5}, {"seconds": (3.0, 1.0)})],
        "parallel": [Traffic("traffic", (8, 16), (100, 100), (64, 128), 1e-9)],
    }
    about = read(ROOT / "benchmarks" / "results.json")["layer"]
    page = render({
        name: {**about, "measured": [each.summary() for each in suite]}
        for name, suite in measured.items()
    })  # fmt: skip

    assert "| quick | b / a | 0.80 | 0.60 | **0.50** | 0.50 – 0.50 | kept |" in page
    assert "| slow | b / a | 0.40 |  | **0.50** | 0.50 – 0.50 | **missed** |" in page
    assert "| slow (large) | a | 1.000 |" in page
    assert "| growth | exponent of time in N | 1.10 | 1.00 | **1.00** |  | kept |" in page
    assert "| growth | exponent of memory in N | 1.10 | 1.00 | **2.00** |  | **missed** |" in page
    assert "| sweep | seconds | 3.00 | 1.00 | **2.00** |  | kept |" in page
    assert "| constant |  | **100** |  | kept |" in page


def test_finished_runs_leave_a_sweep_nothing_to_measure() -> None:
    # it asserts so itself
    [found] = sweep.measurements(Options(small=True))
    assert found.name.endswith("5 finished runs")
    assert 0 < found.values["seconds"] < 60


def test_every_method_is_timed_beside_softmax() -> None:
    pytest.importorskip("gpytorch")
    pytest.importorskip("laplace")
    training, prediction = measurements(Options(rounds=3, small=True))

    trained = {"msp", "kep", "sgpa", "primal", "sngp", "svdkl", "matched_noise"}
    assert set(training.results) == trained
    posthoc = {"temperature", "mc_dropout", "kfllla", "ensemble"}
    combined = {"kep+temperature", "kep+kfllla", "kep+ensemble"}
    assert set(prediction.results) == trained | posthoc | combined
    for contest in (training, prediction):
        assert contest.results["msp"].ratio == 1.0
