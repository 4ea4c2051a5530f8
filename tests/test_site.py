"""The site's own guard: a page with nothing on it stops the build."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

HOOKS = Path(__file__).parents[1] / "docs" / ".hooks"


def test_blank_page_stops_the_build_and_a_page_of_words_does_not() -> None:
    exceptions = pytest.importorskip("mkdocs.exceptions")
    count = runpy.run_path(str(HOOKS / "blank_pages.py"))["on_page_content"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="api/kepsvgp.md"))

    count("<p>" + "word " * 20 + "</p>", page)
    with pytest.raises(exceptions.PluginError, match=r"kepsvgp\.md must have 20 words; it has 2"):
        count("<h1 class='one two three'>Two</h1> <p>words</p>" + "<br>" * 30, page)
