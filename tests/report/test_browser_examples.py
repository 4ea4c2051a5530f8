"""The page in a real browser: the examples it shows."""

import numpy as np
import pytest
import torch
from report.folders import compared, draw, write_run
from report.hostile import CLASSES, TEXTS, text_benchmark
from report.tab import Tab

from kepsvgp.report.examples import Source
from kepsvgp.report.page import make_page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.mark.parametrize("kind", ["mistakes", "hits"])
def test_example_filters_choose_class_and_model(tab, digits_runs, kind) -> None:
    (comparison,) = compared(*digits_runs)
    test = comparison.models[2].members[0].test
    tab.choose("examples", "Show", kind)
    tab.choose("examples", "Model", "2")
    tab.choose("examples", "Class", "8")

    wanted = np.flatnonzero((test.labels == 8) & (test.correct == (kind == "hits")))
    order = test.confidence[wanted] * (1 if kind == "hits" else -1)
    expected = wanted[np.argsort(order, kind="stable")]
    shown = tab.positions("#examples-list")
    assert tab.page.inner_text("#examples-count").startswith(f"{len(wanted)} ")
    assert test.confidence[shown].tolist() == test.confidence[expected].tolist()


def test_foreign_examples_begin_with_the_surest(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    found = comparison.models[0].members[0].answers("ood/photographs")
    tab.choose("examples", "Show", "foreign")

    first = tab.page.locator("#examples-list .tile").first

    assert int(first.get_attribute("data-position")) == int(found.confidence.argmax())
    share = first.locator(".bars .value").first.inner_text()
    assert share == f"{100 * found.confidence.max():.1f}%"


def test_example_pictures_are_those_of_the_data(tab, digits) -> None:
    tile = tab.page.locator("#examples-list .tile").first
    position = int(tile.get_attribute("data-position"))

    pixels = tile.locator("canvas").evaluate(
        "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )

    red = np.array(pixels, dtype=np.uint8).reshape(8, 8, 4)[..., 0]
    np.testing.assert_array_equal(red, digits.test.raw(position)[..., 0])
    label = tile.locator("canvas").get_attribute("aria-label")
    assert label == f"Test example {position}, class {digits.test.labels[position]}"


def test_hostile_text_is_shown_and_not_run(browser, tmp_path) -> None:
    labels = torch.arange(len(TEXTS)) % len(CLASSES)
    run = write_run(
        tmp_path / "run",
        {"kep": {"test": draw(labels, len(CLASSES), skill=0.5)}},
        classes=CLASSES,
        notes=[TEXTS[0]],
    )
    (comparison,) = compared(run)
    path = tmp_path / "report.html"
    path.write_text(make_page([(comparison, Source(text_benchmark(labels).test, {}))]), "utf-8")

    tab = Tab(browser, path, viewport={"width": 380, "height": 800})
    seen: dict[int, str] = {}
    for kind in ("mistakes", "hits"):
        tab.choose("examples", "Show", kind)
        positions = tab.positions("#examples-list")
        texts = tab.page.locator("#examples-list .text").all_text_contents()
        seen |= dict(zip(positions, texts, strict=True))
    names = tab.page.evaluate(
        """() => [...document.querySelectorAll("#examples-list .truth")].map((n) => n.title)"""
    )
    injected = tab.page.evaluate("() => document.querySelectorAll('main script, main img').length")
    width = tab.page.evaluate("() => document.documentElement.scrollWidth")
    notes = tab.page.inner_text(".care")
    tab.close()

    assert [seen[place] for place in range(len(TEXTS))] == list(TEXTS)
    assert set(names) <= set(CLASSES)
    assert injected == 0
    assert TEXTS[0] in notes
    assert width <= 380
