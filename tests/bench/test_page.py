import json
from pathlib import Path

import pytest

from kepsvgp.bench.growth import Growth
from kepsvgp.bench.machine import machine
from kepsvgp.bench.page import read, render
from kepsvgp.bench.suites import as_json
from kepsvgp.bench.timing import Contest, Figures, Limit, Result
from kepsvgp.bench.traffic import Traffic
from kepsvgp.errors import UserError

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def test_page_in_the_project_is_what_its_document_renders_to() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert page == render(read(BENCHMARKS / "results.json"))


def test_other_pages_tell_what_was_measured() -> None:
    suites = json.loads((BENCHMARKS / "results.json").read_text(encoding="utf-8"))["suites"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    step = suites["train"][2]["contenders"]["sgpa"]["ratio"]
    layer, epoch = suites["layer"][2]["contenders"], suites["methods"][0]["epoch"]
    assert f"SGPA, the other attention with a posterior, takes {step:.0f} times as long" in readme
    of_layer = layer["SGPA"]["ratio"] / layer["KEP"]["ratio"]
    assert f"its layer takes {of_layer:.1f} times as long" in readme
    of_epoch = epoch["sgpa"]["ratio"] / epoch["kep"]["ratio"]
    assert f"an epoch takes {of_epoch:.1f} times as long" in readme

    steps = [
        contest["contenders"]["kep"]["ratio"]
        for contest in (suites["train"][1], suites["train"][0])
    ]
    imdb, vit = steps
    assert f"takes {imdb:.2f} of the time that it takes with softmax attention" in readme
    assert f"one of a ViT of seven layers {vit:.2f}" in readme
    asked = [
        contest["contenders"]["kep, 10 samples"]["ratio"] for contest in suites["predict"][::-1]
    ]
    assert "a prediction {:.2f} and {:.2f} of one softmax pass".format(*asked) in readme

    scale = (ROOT / "docs" / "guides" / "scale.md").read_text(encoding="utf-8")
    titles = ("KEP, `landmark`", "KEP, `dual`", "softmax, fused (to 8,192 tokens)")
    for title, growth in zip(titles, suites["scaling"], strict=True):
        time, memory = growth["time_exponent"], growth["memory_exponent"]
        assert f"| {title} | {time:.1f} | {memory:.1f} |" in scale


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
