"""The pages show what the files in results/ say, and the files are complete and small."""

import json
from pathlib import Path

import pytest

from tools.tables import PAGES, ROOT, filled

FILES = sorted((ROOT / "results").iterdir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_the_page_are_those_of_the_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


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
