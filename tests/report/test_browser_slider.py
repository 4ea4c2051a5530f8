"""The page in a real browser: the slider, and all that follows it."""

import numpy as np
import pytest
from report.folders import compared, draw, write_run
from report.tab import Tab

from kepsvgp.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


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
    (comparison,) = compared(*digits_runs)

    tab.page.check(f"#mode-{mode}")
    tab.slide(value)

    rows = tab.rows("#operating-table")
    for model, row in zip(comparison.models, rows, strict=True):
        tests = [member.test for member in model.members]
        points = [operating_point(test, **{mode: value / 100}) for test in tests]
        total = len(tests[0].labels)
        errors = [int((~test.correct).sum()) for test in tests]
        foreign = [member.answers("ood/photographs").confidence for member in model.members]
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
    positions = tab.positions("#abstained")
    assert sorted(positions) == sorted(test.index[below].tolist())
    confidences = test.confidence[positions]
    assert (np.diff(confidences) >= 0).all()
    assert len(positions) == len(test.labels) - number


def test_threshold_from_validation_is_applied_to_the_test_set(tab, digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    tab.page.check("#mode-risk")
    tab.slide(5)
    tab.page.check("#from-validation")
    tab.settle()

    row = tab.rows("#operating-table")[1]

    model = comparison.models[1]
    shares = []
    for member in model.members:
        threshold, _, _ = operating_point(member.answers("val"), risk=0.05)
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
    tab.close()

    assert needed <= width
    assert cut == []
