"""The printed numbers: transcribed once by a program, spot-checked here and against each other."""

import pytest

from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.declarations import PaperTable
from kepsvgp.paper.published import Number, published
from kepsvgp.paper.tables import TABLES

SEVEN = {"aurc", "auroc", "fpr95", "ece", "nll", "brier"}


@pytest.mark.parametrize(
    ("table", "dataset", "row", "column", "expected"),
    [
        ("table1", "cifar10", "kfllla", "brier", Number(23.75, 0.57, 2)),
        ("table1", "cola", "svdkl", "aurc", Number(235.76, 10.03, 2)),
        ("table1", "imdb", "deep_ensembles", "nll", Number(2.68, None, 2)),
        ("table2", "cifar100", "svdkl", "ece", Number(19.48, None, 2)),
        ("table3", "cifar100", "kep_ensembles", "ood_aupr/svhn", Number(77.69, None, 2)),
        ("table4", "imdb", "sgpa", "seconds_per_epoch", Number(1662.36, None, 2)),
        ("table5", "cola", "kep_rr", "fpr95", Number(90.01, None, 2)),
        ("table6", "cifar10", "concat_lowrank", "forward_seconds", Number(0.05, 0.02, 2)),
        ("table7", "cola", "kep_kfllla", "mcc", Number(31.22, 1.63, 2)),
        ("table8", "imdb", "msp", "forward_seconds", Number(0.001, 0.0, 3)),
        ("table9", "cifar10", "add/0.1", "auroc", Number(87.03, None, 2)),
    ],
)
def test_published_numbers_are_those_of_the_paper(table, dataset, row, column, expected) -> None:
    assert published(table)[dataset][row][column] == expected


# rows of a data set that the paper has for the other one alone, or not at all
SAMPLED = {"mc_dropout", "kep_mc_dropout"}
OURS = {
    ("table7", "imdb"): {"kfllla", "kep_kfllla"} | SAMPLED,
    ("table7", "cola"): {"temperature", "kep_temperature"} | SAMPLED,
}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_published_numbers_fill_every_declared_cell_and_no_other(table: PaperTable) -> None:
    numbers = published(table.name)

    assert tuple(numbers) == table.datasets
    for dataset, rows in numbers.items():
        # the paper tells foreign images by the confidence alone
        declared = {row.key for row in table.rows_for(dataset) if not row.score}
        assert set(rows) == declared - OURS.get((table.name, dataset), set())
        columns = {column.key for column in table.columns_for(dataset)}
        assert all(set(cells) == columns for cells in rows.values())


def test_published_numbers_agree_where_tables_repeat_them() -> None:
    one = published("table1")
    # 7 repeats rows of 1; 5 and 6 repeat one row; 4 repeats the texts of 1, and 8 the scores of 4
    for dataset, rows in published("table7").items():
        shared = rows.keys() & one[dataset].keys()
        assert len(shared) == 3
        assert all(rows[row] == one[dataset][row] for row in shared)
    msp = {name: number.mean for name, number in one["cola"]["msp"].items()}
    assert {k: n.mean for k, n in published("table5")["cola"]["msp"].items()} == msp
    concat = published("table6")["cifar10"]["concat"]
    assert {k: concat[k] for k in one["cifar10"]["kep"]} == one["cifar10"]["kep"]
    four, eight = published("table4"), published("table8")
    for dataset, score in (("imdb", "accuracy"), ("cola", "mcc")):
        for row in ("msp", "sgpa", "kep"):
            for column in (score, "nll"):
                assert four[dataset][row][column] == one[dataset][row][column]
    for dataset, rows in eight.items():
        score = "mcc" if dataset == "cola" else "accuracy"
        assert all(rows[row][score] == four[dataset][row][score] for row in rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_published_numbers_lie_in_their_range(table: PaperTable) -> None:
    for rows in published(table.name).values():
        for cells in rows.values():
            for key, number in cells.items():
                scale = METRICS[key.partition("/")[0]].factor
                # Brier scores reach 2, NLL and times have no end
                top = 2 * scale if key == "brier" else scale
                assert 0 < number.mean < (2000 if key in ("nll", "seconds_per_epoch") else top)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_pairs_name_rows_of_their_table(table: PaperTable) -> None:
    keys = {row.key for row in table.rows}
    assert all(pair.first in keys and pair.second in keys for pair in table.pairs)
    assert len(keys) == len(table.rows)
