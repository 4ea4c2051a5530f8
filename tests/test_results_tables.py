"""The pages show what the files in results/ say, and the files are complete and small."""

import json
from html import unescape
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from tools.forest import IMAGE, described, points
from tools.tables import MAIN, PAGES, ROOT, filled, load, over_seeds

FILES = sorted((ROOT / "results").iterdir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_the_page_are_those_of_the_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


def test_forest_plot_is_that_of_the_files() -> None:
    assert described() in unescape(IMAGE.read_text(encoding="utf-8"))
    assert [len(points(title, "ece")[0]) for title in MAIN] == [5, 3, 5, 3, 3, 3, 3]


def test_interval_over_seeds_is_that_of_a_paired_t_test() -> None:
    found = load("cifar10", "table1")
    kep, msp = (found["rows"][row]["score"]["aurc"] for row in ("kep", "msp"))
    low, high = ttest_rel(kep, msp).confidence_interval(0.95)

    assert over_seeds(found, "kep", "msp")["aurc"] == pytest.approx(
        (sum(kep) / 3 - sum(msp) / 3, low, high)
    )


def test_results_are_a_few_small_files() -> None:
    assert {file.suffix for file in FILES} == {".json"}
    assert len(FILES) < 60
    assert sum(file.stat().st_size for file in FILES) < 2_000_000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_says_what_it_shows_and_how_it_was_made(file: Path) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["title"]
    assert content["shows"]
    tables = [*content.get("tables", {}).values(), *content.get("histories", {}).values()]
    assert all(table["command"] for table in tables)
    if tables:
        assert content["versions"]["torch"]
