"""The page in a real browser: what moves, what is said, and that nothing leaves it."""

import re
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from report.folders import draw, write_run
from report.hostile import CLASSES, TEXTS, text_benchmark

from kepsvgp.config.sections import RunConfig
from kepsvgp.report import write_report
from kepsvgp.report.examples import Source
from kepsvgp.report.models import compare
from kepsvgp.report.page import make_page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


class Tab:
    """A page from disk, with everything it complained about or asked for."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self._heard(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss())
        )
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(
            "#examples-list .tile, #examples-list .absent", state="attached"
        )

    def _heard(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def settle(self) -> None:
        """Waits until what was asked for has been drawn."""
        self.page.evaluate("() => new Promise((f) => requestAnimationFrame(() => setTimeout(f)))")

    def slide(self, value: float) -> None:
        self.page.evaluate(
            """(value) => {
                const slider = document.getElementById("slider");
                slider.value = value;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            value,
        )
        self.settle()

    def rows(self, selector: str) -> list[list[str]]:
        """The text of a table's body."""
        return self.page.evaluate(
            """(selector) => [...document.querySelectorAll(`${selector} tbody tr`)]
                .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))""",
            selector,
        )

    def held_back(self) -> list[int]:
        """Positions of all abstained examples, in their order."""
        while self.page.locator("#abstained .more").is_visible():
            self.page.click("#abstained .more")
        tiles = "nodes => nodes.map(n => +n.dataset.position)"
        return self.page.eval_on_selector_all("#abstained .tile", tiles)

    def close(self) -> None:
        """No page may complain, ask or speak up."""
        self.context.close()
        assert self.complaints == []
        assert self.dialogs == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def digits_page(digits_runs, tmp_path_factory):
    return write_report(digits_runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def tab(browser, digits_page) -> Iterator[Tab]:
    opened = Tab(browser, digits_page, viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


def operating_point(test, *, coverage=None, risk=None):
    """Threshold, number answered and number wrong, by trying every threshold."""
    found = (np.inf, 0, 0)
    for threshold in sorted(set(test.confidence.tolist()), reverse=True):
        answered = test.confidence >= np.float32(threshold)
        wrong = int((answered & ~test.correct).sum())
        number = int(answered.sum())
        if coverage is not None:
            found = (threshold, number, wrong)
            if number >= coverage * len(answered) - 1e-9:
                return found
        elif wrong / number <= risk:
            found = (threshold, number, wrong)
    return found


def over_seeds(values: list[float], digits: int) -> str:
    mean, deviation = 100 * np.mean(values), 100 * np.std(values, ddof=1)
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}%"


@pytest.mark.parametrize(("mode", "value"), [("coverage", 62.5), ("coverage", 95), ("risk", 3.2)])
def test_slider_moves_coverage_risk_and_abstained_list(tab, digits_runs, mode, value) -> None:
    (comparison,) = compare(digits_runs)

    tab.page.check(f"#mode-{mode}")
    tab.slide(value)

    rows = tab.rows("#operating-table")
    for model, row in zip(comparison.models, rows, strict=True):
        tests = [member.test for member in model.members]
        points = [operating_point(test, **{mode: value / 100}) for test in tests]
        total = len(tests[0].labels)
        errors = [int((~test.correct).sum()) for test in tests]
        foreign = [member.predictions("ood/photographs").confidence for member in model.members]
        assert row[0] == model.label
        assert float(row[1]) == pytest.approx(points[0][0], abs=5e-4)
        assert row[2] == over_seeds([number / total for _, number, _ in points], 1)
        assert row[3] == over_seeds([wrong / number for _, number, wrong in points], 2)
        held = [1 - wrong / e for (_, _, wrong), e in zip(points, errors, strict=True)]
        assert row[4] == over_seeds(held, 1)
        slipped = np.mean(
            [(c >= np.float32(p[0])).mean() for c, p in zip(foreign, points, strict=True)]
        )
        # the page holds 1,001 quantiles of the foreign confidences
        assert float(row[5].split()[0]) / 100 == pytest.approx(slipped, abs=2e-3)

    test = comparison.models[0].members[0].test
    threshold, number, _ = operating_point(test, **{mode: value / 100})
    below = np.flatnonzero(test.confidence < np.float32(threshold))
    heading = tab.page.inner_text("#abstained-count")
    assert heading == f"{len(below)} of {len(test.labels)} test examples held back"
    positions = tab.held_back()
    assert sorted(positions) == sorted(test.index[below].tolist())
    confidences = test.confidence[positions]
    assert (np.diff(confidences) >= 0).all()
    assert len(positions) == len(test.labels) - number


def test_table_of_the_chosen_point_shows_all_models_and_columns(browser, digits, tmp_path) -> None:
    foreign = digits.ood["photographs"].labels
    names = ("kep", "kep+temperature", "kep+mc_dropout", "kep+kfllla", "kep+ensemble")
    splits = {
        "test": draw(digits.test.labels),
        "ood/photographs": draw(foreign),
        "ood/textures": draw(foreign, seed=1),
    }
    run = write_run(tmp_path / "run", dict.fromkeys(names, splits))
    page = write_report([run], tmp_path / "report.html")

    tab = Tab(browser, page, viewport={"width": 1280, "height": 900})
    room = "box => [box.clientWidth, box.scrollWidth]"
    width, needed = tab.page.eval_on_selector("#operating-table", room)
    cut = tab.page.eval_on_selector_all(
        "#operating-table tbody th span",
        "all => all.filter(s => s.scrollWidth > s.clientWidth + 1)",
    )
    headings = tab.page.eval_on_selector_all(
        "#operating-table thead th", "all => all.map(cell => cell.textContent)"
    )
    tab.close()

    assert needed <= width
    assert cut == []
    assert headings[:2] == ["Model", "Threshold"]


def test_slider_marks_the_point_on_the_curve(tab, digits_runs) -> None:
    (comparison,) = compare(digits_runs)
    test = comparison.models[0].members[0].test

    places = []
    for value in (40, 90):
        tab.slide(value)
        marker = tab.page.locator("#risk-body .marker").first
        places.append((float(marker.get_attribute("cx")), float(marker.get_attribute("cy"))))

    points = [operating_point(test, coverage=value) for value in (0.4, 0.9)]
    assert places[1][0] > places[0][0]
    # a larger risk is further up, which is a smaller y
    assert (places[1][1] < places[0][1]) == (
        points[1][2] / points[1][1] > points[0][2] / points[0][1]
    )


def test_threshold_from_validation_is_applied_to_the_test_set(tab, digits_runs) -> None:
    (comparison,) = compare(digits_runs)
    tab.page.check("#mode-risk")
    tab.slide(5)
    tab.page.check("#from-validation")
    tab.settle()

    row = tab.rows("#operating-table")[1]

    model = comparison.models[1]
    shares = []
    for member in model.members:
        threshold, _, _ = operating_point(member.predictions("val"), risk=0.05)
        shares.append((member.test.confidence >= np.float32(threshold)).mean())
    assert row[2] == over_seeds(shares, 1)


def test_slider_follows_the_keyboard(tab) -> None:
    tab.page.focus("#slider")
    before = float(tab.page.input_value("#slider-value"))
    says = tab.page.inner_text("#operating-says")

    for _ in range(20):
        tab.page.keyboard.press("ArrowLeft")
    tab.settle()

    assert float(tab.page.input_value("#slider-value")) == before - 20 * 0.5
    assert tab.page.inner_text("#operating-says") != says


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


def choose(tab: Tab, section: str, label: str, value: str) -> None:
    tab.page.locator(f"#{section}-body label.field", has_text=label).locator(
        "select"
    ).select_option(value)
    tab.settle()


@pytest.mark.parametrize("kind", ["mistakes", "hits"])
def test_example_filters_choose_class_and_model(tab, digits_runs, kind) -> None:
    (comparison,) = compare(digits_runs)
    test = comparison.models[2].members[0].test
    choose(tab, "examples", "Show", kind)
    choose(tab, "examples", "Model", "2")
    choose(tab, "examples", "Class", "8")

    wanted = np.flatnonzero((test.labels == 8) & (test.correct == (kind == "hits")))
    order = test.confidence[wanted] * (1 if kind == "hits" else -1)
    expected = test.index[wanted[np.argsort(order, kind="stable")]].tolist()
    shown = tab.page.eval_on_selector_all(
        "#examples-list .tile", "nodes => nodes.map(n => +n.dataset.position)"
    )
    count = tab.page.inner_text("#examples-count")
    assert count.startswith(f"{len(wanted)} ")
    confidences = test.confidence[shown]
    assert len(shown) == min(15, len(expected))
    assert confidences.tolist() == test.confidence[expected[: len(shown)]].tolist()


def test_foreign_examples_begin_with_the_surest(tab, digits_runs) -> None:
    (comparison,) = compare(digits_runs)
    found = comparison.models[0].members[0].predictions("ood/photographs")
    choose(tab, "examples", "Show", "foreign")

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


def test_hidden_model_leaves_pictures_and_tables(tab) -> None:
    assert len(tab.rows("#operating-table")) == 3

    tab.page.locator("#legend .pill").nth(1).click()
    tab.settle()

    assert [row[0] for row in tab.rows("#operating-table")] == ["KEP-SVGP", "Temperature scaling"]
    assert tab.page.locator("#reliability-body figure").count() == 2


def test_shift_section_shows_stored_values(tab, digits_runs) -> None:
    (comparison,) = compare(digits_runs)
    choose(tab, "shift", "Metric", "accuracy")
    choose(tab, "shift", "Severity", "5")
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


def test_tables_copy_as_text(tab) -> None:
    copied = tab.page.evaluate(
        """() => {
            const range = document.createRange();
            range.selectNode(document.querySelector("#summary table"));
            getSelection().removeAllRanges();
            getSelection().addRange(range);
            return getSelection().toString();
        }"""
    )
    line = next(row for row in copied.splitlines() if row.startswith("KEP-SVGP"))
    assert len(line.split("\t")) == 8


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


def test_hostile_text_is_shown_and_not_run(browser, tmp_path) -> None:
    labels = torch.arange(len(TEXTS)) % len(CLASSES)
    run = write_run(
        tmp_path / "run",
        {"kep": {"test": draw(labels, len(CLASSES), skill=0.5)}},
        classes=CLASSES,
        notes=[TEXTS[0]],
        task="text",
    )
    (comparison,) = compare([run])
    path = tmp_path / "report.html"
    path.write_text(make_page([(comparison, Source(text_benchmark(labels), ()))]), "utf-8")

    tab = Tab(browser, path, viewport={"width": 380, "height": 800})
    seen: dict[int, str] = {}
    for kind in ("mistakes", "hits"):
        choose(tab, "examples", "Show", kind)
        while tab.page.locator("#examples-list .more").is_visible():
            tab.page.click("#examples-list .more")
        tiles = tab.page.evaluate(
            """() => [...document.querySelectorAll("#examples-list .tile")].map((tile) =>
                [+tile.dataset.position, tile.querySelector(".text").textContent])"""
        )
        seen |= {int(position): text for position, text in tiles}
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


def test_page_without_data_or_predictions_opens(browser, tmp_path) -> None:
    config = RunConfig.model_validate({"data": {"name": "cifar10", "root": str(tmp_path / "no")}})
    run = write_run(tmp_path / "a", {"kep": {"test": draw(torch.arange(30) % 10)}}, config=config)
    bare = write_run(tmp_path / "b", {"kep": {"test": draw(torch.arange(30) % 10)}})
    (bare / "predictions/score/kep/test.safetensors").unlink()

    absent = Tab(browser, write_report([run], tmp_path / "absent.html"))
    text = absent.page.inner_text("main")
    absent.close()
    context = browser.new_context()
    page = context.new_page()
    page.goto(write_report([bare], tmp_path / "bare.html").as_uri())
    bare_text = page.inner_text("#risk-body")
    context.close()

    assert "The data set is not at hand" in text
    assert "not in the page" in text
    assert "hold no predictions" in bare_text


def test_slider_moves_over_fifty_thousand_predictions(browser, tmp_path) -> None:
    labels = torch.arange(10_000) % 10
    methods = ("msp", "temperature", "mc_dropout", "kfllla", "svdkl")
    splits = {
        name: {"test": draw(labels, seed=place, spread=0.5)} for place, name in enumerate(methods)
    }
    run = write_run(tmp_path / "run", splits, config=RunConfig(method="msp"))
    path = write_report([run], tmp_path / "report.html")

    tab = Tab(browser, path)
    seen = set()
    for coverage in range(30, 90, 10):
        tab.page.evaluate(
            """(value) => {
                const slider = document.getElementById("slider");
                slider.value = value;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            coverage,
        )
        tab.settle()
        seen.add(tab.page.inner_text("#abstained-count"))
    tab.close()

    assert len(seen) == 6
    assert all("of 10,000" in text for text in seen)
    assert path.stat().st_size < 8e6
