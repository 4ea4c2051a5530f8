"""The page in a real browser: known and foreign inputs."""

import numpy as np
import pytest
from report.folders import compared, draw, write_run
from report.tab import Tab
from report.test_browser_slider import over_seeds

from kepsvgp.report import write_report
from kepsvgp.report.examples import find_source
from kepsvgp.report.payload import comparison_payload

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
FOREIGN = "ood/photographs"


def accept(tab: Tab, percent: float) -> None:
    tab.page.fill("#alarms-value", str(percent))
    tab.settle()


@pytest.mark.parametrize("percent", [0.5, 5, 7, 20])
def test_slider_of_false_alarms_moves_the_shares_and_the_list(tab, digits_runs, percent) -> None:
    (comparison,) = compared(*digits_runs)
    members = comparison.models[0].members
    tab.slide(60)

    accept(tab, percent)

    ((label, alarms, noticed, only),) = tab.rows("#alarm-table")
    thresholds = [_threshold(member.test, 0.6) for member in members]
    answers = [member.answers(FOREIGN) for member in members]
    is_foreign = [a.novelty_p <= np.float32(percent / 100) for a in answers]
    sure = [a.confidence >= t for a, t in zip(answers, thresholds, strict=True)]
    false = [(m.test.novelty_p <= np.float32(percent / 100)).mean() for m in members]
    assert label == comparison.models[0].label
    assert alarms == over_seeds(false, 1)
    assert noticed == over_seeds([each.mean() for each in is_foreign], 1)
    both = [a & b for a, b in zip(is_foreign, sure, strict=True)]
    assert only == over_seeds([each.mean() for each in both], 1)

    shown = tab.positions("#caught")
    carried = comparison_payload(comparison, find_source(comparison))["foreign"][FOREIGN]
    expected = [position for position in carried["positions"] if both[0][position]]
    assert sorted(shown) == sorted(expected)
    assert (np.diff(answers[0].confidence[shown]) <= 1e-4).all()


def _threshold(test, coverage: float) -> np.float32:
    """The confidence from which on at least this share is answered."""
    return np.sort(test.confidence)[::-1][int(np.ceil(coverage * len(test.confidence))) - 1]


def test_surest_of_what_novelty_noticed_are_in_the_page(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    found = comparison.models[0].members[0].answers(FOREIGN)
    tab.slide(99)

    accept(tab, 5)

    surest = np.argsort(-found.confidence, kind="stable")
    wanted = surest[found.novelty_p[surest] <= np.float32(0.05)][:10]
    tiles = tab.page.locator("#caught .tile")
    assert [int(tiles.nth(i).get_attribute("data-position")) for i in range(5)] == [
        *wanted[:5].tolist()
    ]
    p = tiles.first.locator(".truth").nth(1).inner_text()
    assert p == f"p-value {found.novelty_p[wanted[0]]:.4f}"


def test_picture_shows_the_shares_of_known_and_foreign_inputs(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    member = comparison.models[0].members[0]
    known, foreign = member.test.novelty, member.answers(FOREIGN).novelty

    tab.page.click("#novelty-body details summary")
    rows = tab.rows("#novelty-body details")

    edges = [float(rows[0][0].split(" – ")[0]), *(float(row[0].split(" – ")[1]) for row in rows)]
    assert edges[0] == pytest.approx(min(known.min(), foreign.min()), abs=0.006)
    assert edges[-1] == pytest.approx(max(known.max(), foreign.max()), abs=0.006)
    for column, values in ((1, known), (2, foreign)):
        shares = [float(row[column].rstrip("%")) / 100 for row in rows]
        assert sum(shares) == pytest.approx(1, abs=0.02)
        # up to rounded edges, as many below the middle
        below = (values <= edges[13]).mean()
        assert sum(shares[:13]) == pytest.approx(below, abs=0.02)


def test_section_is_left_out_where_no_model_has_p_values(browser, digits, tmp_path) -> None:
    run = write_run(tmp_path / "run", {"kep": {"test": draw(digits.test.labels)}})
    page = write_report([run], tmp_path / "report.html")

    tab = Tab(browser, page, viewport={"width": 1280, "height": 900})
    hidden = [not tab.page.is_visible(place) for place in ("#novelty", 'nav a[href="#novelty"]')]
    tab.close()

    assert hidden == [True, True]


def test_novelty_needs_no_foreign_set(browser, digits, tmp_path) -> None:
    run = write_run(tmp_path / "run", {"kep": {"test": draw(digits.test.labels, novel=0.0)}})
    page = write_report([run], tmp_path / "report.html")

    tab = Tab(browser, page, viewport={"width": 380, "height": 800})
    ((_, alarms),) = tab.rows("#alarm-table")
    width = tab.page.evaluate("() => document.documentElement.scrollWidth")
    tab.close()

    (comparison,) = compared(run)
    p = comparison.test.novelty_p
    assert alarms.startswith(f"{100 * (p <= np.float32(0.05)).mean():.1f}% (")
    assert width <= 380
