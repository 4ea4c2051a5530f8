from pathlib import Path

import pytest

from kepsvgp.bench.growth import Growth
from kepsvgp.bench.machine import machine
from kepsvgp.bench.page import read, render
from kepsvgp.bench.suites import as_json
from kepsvgp.bench.timing import Contest, Figures, Limit, Result
from kepsvgp.bench.traffic import Traffic
from kepsvgp.errors import UserError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_page_in_the_project_is_what_its_document_renders_to() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert page == render(read(BENCHMARKS / "results.json"))


def test_page_shows_limits_kept_and_missed(tmp_path: Path) -> None:
    results = {"a": Result((2.0,), (1.0,)), "b": Result((1.0,), (0.5,))}
    growth = Growth("growth", (1, 2, 4), (1.0, 2.0, 4.0), (1, 4, 16), must=1.1, wish=1.0)
    traffic = Traffic("traffic", (8, 16), (100, 100), (64, 128), 1e-9)
    document = as_json(
        machine(),
        {
            "layer": [Contest("quick", "a", results, Limit("b", 0.8, 0.6))],
            "train": [Contest("slow", "a", results, Limit("b", 8.0, at_least=True))],
            "scaling": [growth],
            "parallel": [traffic],
            "metrics": [Figures("figures", {"sort_seconds": 0.25})],
        },
    )
    (tmp_path / "results.json").write_text(document)
    page = render(read(tmp_path / "results.json"))

    assert "| quick: b against a | ≤ 0.8 | ≤ 0.6 | **0.50** | 0.50 – 0.50 | kept |" in page
    assert "| slow: b against a | ≥ 8.0 |  | **0.50** | 0.50 – 0.50 | **missed** |" in page
    assert "| growth: exponent of time | ≤ 1.1 | 1.0 | **1.00** |  | kept |" in page
    assert "| growth: exponent of memory | ≤ 1.1 | 1.0 | **2.00** |  | **missed** |" in page
    assert "| independent of length |  | **100** |  | kept |" in page
    assert "| sort seconds | 0.25 |" in page


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"must be what `kepsvgp bench --json` prints"):
        read(path)
