from math import nan

import pytest

from kepsvgp.metrics import Interval
from kepsvgp.paper.cells import UNDEFINED, NumberCell, Reason
from kepsvgp.paper.chosen import choose
from kepsvgp.paper.claims import Claim, make_claim
from kepsvgp.paper.declarations import MetricColumn, Pair
from kepsvgp.paper.filled import FilledTable
from kepsvgp.paper.formats import markdown, ours_text, paper_text
from kepsvgp.paper.plan import plan_exhibit
from kepsvgp.paper.published import Number, published
from kepsvgp.paper.study import Study

MEMORY = Reason("failed", "seed 1 failed: no | memory")
NUMBERS = (Number(84.7, 0.61, 2), Number(83.5, 0.43, 2))


@pytest.mark.parametrize(
    ("metric", "interval", "verdict"),
    [
        ("accuracy", Interval(0.02, 0.01, 0.03), "holds"),
        ("accuracy", Interval(0.02, -0.01, 0.05), "holds, within noise"),
        ("accuracy", Interval(-0.02, -0.05, 0.01), "fails, within noise"),
        ("accuracy", Interval(-0.02, -0.03, -0.01), "fails"),
        ("accuracy", Interval(0.0, 0.0, 0.0), "fails, within noise"),
        ("nll", Interval(-0.2, -0.3, -0.1), "holds"),
        ("nll", Interval(-0.2, -0.3, 0.1), "holds, within noise"),
        ("nll", Interval(0.2, -0.1, 0.3), "fails, within noise"),
        ("nll", Interval(0.2, 0.1, 0.3), "fails"),
        ("nll", None, "unknown"),
    ],
)
def test_verdict_follows_the_interval_and_the_better_side(metric, interval, verdict) -> None:
    claim = Claim("kep", "msp", MetricColumn(metric, "test"), NUMBERS, interval)
    assert claim.verdict == verdict


@pytest.mark.parametrize("interval", [Interval(nan, nan, nan), Interval(0.02, nan, nan)])
def test_what_no_resample_defines_is_unknown(interval) -> None:
    claim = make_claim(Pair("kep", "msp"), MetricColumn("accuracy", "test"), NUMBERS, interval)
    assert claim is not None
    assert (claim.verdict, claim.reason) == ("unknown", UNDEFINED)


def test_cell_has_the_deviation_of_a_sample() -> None:
    cell = NumberCell((0.5, 0.7))
    assert cell.mean == pytest.approx(0.6)
    # √(2 · 0.1² / 1)
    assert cell.sd == pytest.approx(0.1414213562)
    assert NumberCell((0.5,)).sd is None
    assert NumberCell(()).mean is None


def test_numbers_are_shown_in_the_paper_s_units() -> None:
    assert ours_text(NumberCell((0.5, 0.7)), MetricColumn("accuracy", "test")) == "60.00 ± 14.14"
    assert ours_text(NumberCell((0.0351,)), MetricColumn("aurc", "test")) == "35.10"
    assert ours_text(NumberCell((0.8,)), MetricColumn("nll", "test")) == "8.00"
    assert (
        ours_text(NumberCell((1662.36,)), MetricColumn("seconds_per_epoch", "time")) == "1.66e+03"
    )
    assert ours_text(NumberCell(()), MetricColumn("nll", "test")) == "–"
    assert paper_text(Number(83.5, 0.43, 2)) == "83.50 ± 0.43"
    assert paper_text(Number(0.001, 0.0, 3)) == "0.001 ± 0.000"
    assert paper_text(None) == "–"


def filled(cells: dict[tuple[str, str], NumberCell]) -> FilledTable:
    columns = (MetricColumn("accuracy", "test"), MetricColumn("nll", "test"))
    (table,) = choose(["table1"], ["msp", "kep"])
    planned = plan_exhibit(table, Study(dataset="cifar10"))
    return FilledTable(table, planned, columns, cells, [], ["all is well"])


def test_markdown_shows_failures_and_both_numbers() -> None:
    numbers = published("table1")["cifar10"]
    shown = filled(
        {
            ("msp", "accuracy"): NumberCell((0.8, 0.9), (), numbers["msp"]["accuracy"]),
            ("msp", "nll"): NumberCell((0.7,), (), numbers["msp"]["nll"]),
            ("kep", "accuracy"): NumberCell((0.8,), (MEMORY,), None),
            ("kep", "nll"): NumberCell(
                (), (Reason("failed", "seed 0 failed: it diverged"), MEMORY)
            ),
        }
    )
    assert shown.best_rows(shown.columns[0]) == {"msp"}
    lines = markdown(shown).split("\n")
    assert "- all is well" in lines
    assert "| MSP | **85.00 ± 7.07** | 7.00 |" in lines
    assert "| *paper* | *83.50 ± 0.43* | *11.13 ± 0.40* |" in lines
    assert "| KEP-SVGP | 80.00 failed [1] | – failed [2] [1] |" in lines
    assert "1. seed 1 failed: no | memory" in lines
    assert "2. seed 0 failed: it diverged" in lines


def test_best_rows_prefer_the_lower_where_lower_is_better() -> None:
    cells = {
        (row, column): NumberCell((value,))
        for row, value in (("msp", 0.5), ("kep", 0.6))
        for column in ("accuracy", "nll")
    }
    shown = filled(cells)
    assert shown.best_rows(shown.columns[0]) == {"kep"}
    assert shown.best_rows(shown.columns[1]) == {"msp"}
