"""The page in a real browser: what is said and drawn, and that nothing leaves it."""

import re

import numpy as np
import pytest
import torch
from report.folders import compared, draw, write_run
from report.tab import Tab

from kepsvgp.config.sections import RunConfig
from kepsvgp.report import write_report
from kepsvgp.report.curves import reliability

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_controls_can_be_reached_with_the_tab_key(tab) -> None:
    reached = set()
    for _ in range(150):
        tab.page.keyboard.press("Tab")
        reached.add(
            tab.page.evaluate(
                "() => document.activeElement.id || document.activeElement.tagName.toLowerCase()"
            )
        )
    assert {"theme", "slider", "slider-value", "select", "button", "summary"} <= reached


def test_hidden_model_leaves_pictures_and_tables(tab) -> None:
    assert len(tab.rows("#operating-table")) == 3

    tab.page.locator("#legend .pill").nth(1).click()
    tab.settle()

    assert [row[0] for row in tab.rows("#operating-table")] == ["KEP-SVGP", "Temperature scaling"]
    assert tab.page.locator("#reliability-body figure").count() == 2


def test_bars_of_few_examples_are_faint(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    tests = [model.tests[0] for model in comparison.models]
    counts = [reliability(test.confidence, test.correct).count for test in tests]

    faint = tab.page.locator("#reliability-body rect.bar.few").count()
    stripes = tab.page.locator("#reliability-body rect[fill^=url]").count()

    assert faint == sum(int(((count > 0) & (count < 10)).sum()) for count in counts) > 0
    assert stripes == sum(int((count >= 10).sum()) for count in counts)


def test_small_groups_are_points_and_models_share_an_axis(browser, tmp_path) -> None:
    labels = torch.arange(300) % 10
    splits = {
        f"kep{method}": {"test": draw(labels, skill=30.0, spread=spread)}
        for method, spread in (("", 2.0), ("+kfllla", 0.5))
    }
    page = write_report([write_run(tmp_path / "run", splits)], tmp_path / "report.html")

    tab = Tab(browser, page)
    points = tab.page.locator("#confidence-body .single.wrong").count()
    wrong = tab.page.locator("#confidence-body .area.wrong").count()
    axes = [
        figure.locator(".axes text[text-anchor=end]").all_text_contents()
        for figure in tab.page.locator("#uncertainty-body figure").all()
    ]
    tab.close()

    errors = [(p["test"].predicted != labels).sum() for p in splits.values()]
    assert points == sum(errors) > 0
    assert wrong == 0
    assert len(axes) == 2
    assert axes[0] == axes[1]


def test_shift_section_shows_stored_values(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    tab.choose("shift", "Metric", "accuracy")
    tab.choose("shift", "Severity", "5")
    tab.page.locator("#shift-body summary").first.click()
    # the table is made when its summary opens
    tab.page.wait_for_selector("#shift-body details .scroll tbody tr")

    rows = tab.rows("#shift-body details .scroll")

    names = {"unshifted": "test", "fog": "shift/fog/5", "gaussian noise": "shift/gaussian_noise/5"}
    assert [kind for kind, *_ in rows] == list(names)
    for kind, *texts in rows:
        for model, text in zip(comparison.models, texts, strict=True):
            assert text == f"{100 * np.mean(model.values(names[kind], 'accuracy')):.2f}%"


def test_every_picture_has_a_text_and_numbers(tab) -> None:
    pictures = tab.page.evaluate(
        """() => [...document.querySelectorAll("svg, canvas")].map((node) => {
            const label = node.getAttribute("aria-label") ?? "";
            return node.getAttribute("aria-hidden") === "true"
                || (node.getAttribute("role") === "img" && label.length > 10);
        })"""
    )
    assert len(pictures) > 30
    assert all(pictures)


@pytest.mark.parametrize("width", [380, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_its_window_in_both_schemes(browser, digits_page, width, scheme) -> None:
    tab = Tab(browser, digits_page, viewport={"width": width, "height": 800}, color_scheme=scheme)
    size = tab.page.evaluate("() => document.documentElement.scrollWidth")
    background = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 3 * 128
    tab.page.click("#theme")
    changed = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    tab.close()

    assert size <= width
    assert light == (scheme == "light")
    assert changed != background


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_meets_wcag_aa(browser, digits_page, scheme) -> None:
    tab = Tab(browser, digits_page, color_scheme=scheme)
    pairs = tab.page.evaluate(
        """(kinds) => kinds.flatMap((kind) =>
            [...document.querySelectorAll(kind)].slice(0, 5).map((node) => {
                const see = (n) => getComputedStyle(n).backgroundColor;
                let ground = node;
                while (ground.parentElement && see(ground) === "rgba(0, 0, 0, 0)") {
                    ground = ground.parentElement;
                }
                return [kind, getComputedStyle(node).color, see(ground)];
            }))""",
        [".lead", ".how", "figcaption", "td", ".state", ".mark", ".hint", "dt", ".absent"],
    )
    tab.close()

    assert len(pairs) > 20
    assert [pair for pair in pairs if contrast(*pair[1:]) < 4.5] == []


def test_page_prints_without_controls(browser, digits_page) -> None:
    tab = Tab(browser, digits_page, color_scheme="dark")
    tab.page.emulate_media(media="print", color_scheme="dark")
    shown = tab.page.evaluate(
        """() => [".top", ".controls", ".fields"].map(
            (s) => getComputedStyle(document.querySelector(s)).display)"""
    )
    background = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    paper = tab.page.pdf()
    tab.close()

    assert shown == ["none", "none", "none"]
    assert background == "rgb(255, 255, 255)"
    assert paper.startswith(b"%PDF")


def test_several_benchmarks_are_switched(browser, digits_runs, tmp_path) -> None:
    other = write_run(tmp_path / "run", {"kep": {"test": draw(torch.arange(50) % 10)}})
    path = write_report([*digits_runs, other], tmp_path / "report.html")

    tab = Tab(browser, path)
    first = tab.page.inner_text("#abstained-count")
    tab.page.locator("#tabs button").nth(1).click()
    tab.settle()
    second = tab.page.inner_text("#abstained-count")
    facts = tab.page.locator(".eyebrow:visible").inner_text()
    tab.close()

    assert "of 359" in first
    assert "of 50" in second
    assert "50 test examples" in facts


def test_page_says_what_the_draws_of_a_layer_do(tab) -> None:
    cells = tab.page.locator("#kernel table:visible td").all_inner_texts()
    assert cells[:5] == ["collapsed", "7.3", "1.1e-4", "2.5e-3", "3.0e-1"]


def test_page_without_data_or_predictions_leaves_out_what_it_cannot_show(
    tab, browser, tmp_path
) -> None:
    places = ["#kernel", "#shift", "nav a[href='#kernel']", "nav a[href='#shift']"]
    splits = {"kep": {"test": draw(torch.arange(30) % 10)}}
    data = {"name": "cifar10", "root": str(tmp_path / "no")}
    config = RunConfig.model_validate({"data": data})
    run = write_run(tmp_path / "a", splits, config=config)
    bare = write_run(tmp_path / "b", splits)
    (bare / "predictions/score/kep/test.safetensors").unlink()

    absent = Tab(browser, write_report([run], tmp_path / "absent.html"))
    text = absent.page.inner_text("main")
    seen = [[t.page.locator(place).is_visible() for place in places] for t in (tab, absent)]
    absent.close()
    page = browser.new_page()
    page.goto(write_report([bare], tmp_path / "bare.html").as_uri())
    bare_text = page.inner_text("#risk-body")
    page.close()

    assert seen == [[True] * 4, [False] * 4]
    assert "not in the page" in text
    assert "hold no predictions" in bare_text
