"""The tables of the pages are those of the files in `results/`, and name runs that are there."""

import json
import re

import evidence
import page
import pytest
from pages.told import RESULTS, SEVEN, TEXT, TOLD, fold_sides, gains


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_files(path) -> None:
    text = path.read_text()
    assert page.filled(text) == text, "run: python results/page.py"


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.name)
def test_every_table_of_results_is_filled_from_files(path) -> None:
    rest = page.BLOCK.sub("", path.read_text())
    assert not [line for line in rest.splitlines() if line.startswith("| ") and "." in line]


def test_block_of_a_changed_file_would_be_noticed() -> None:
    text = TOLD[0].read_text()
    (first,) = re.findall(r"^\| MSP \| (\d+\.\d\d) ±", text, flags=re.MULTILINE)[:1]
    changed = text.replace(first, f"{float(first) + 0.01:.2f}", 1)
    assert page.filled(changed) == text


def test_every_table_names_runs_whose_files_are_there() -> None:
    tables = sorted(RESULTS.glob("*/tables/*.json"))
    assert tables
    for path in tables:
        runs = {
            run
            for row in evidence.table(str(path.relative_to(RESULTS)))["rows"]
            for run in row["runs"]
        }
        assert runs
        for run in runs:
            for name in ("config.toml", "metrics.json", "history.jsonl", "run.json"):
                assert (path.parents[1] / "runs" / run / name).exists(), f"{path}: {run}/{name}"


def test_paper_has_kep_ahead_of_softmax_everywhere() -> None:
    # the folds' table compares methods, and repeats no claims of the paper
    for path in {*page.TABLE1.values(), *page.MAIN.values()} - set(evidence.FOLDS):
        claims = evidence.table(path)["claims"]
        pairs = [c for c in claims if {c["better"], c["worse"]} == {"kep", "msp"}]
        assert [claim["better"] for claim in pairs] == ["kep"] * 7


def test_results_tell_the_sizes_of_the_sets() -> None:
    for data, told in (
        ("cola", "{train:,} sentences to train on, {val} to choose epochs"),
        (
            "imdb",
            "Trained on {train:,} reviews, chosen on {val:,}, measured on the official {test:,}",
        ),
    ):
        for run in (RESULTS / data / "runs").iterdir():
            sizes = json.loads((run / "run.json").read_text())["splits"]["sizes"]
            assert told.format(**sizes) in TEXT


def counted(at_all: int, ahead: int, behind: int) -> str:
    marks = [f"{mark}{count}" for mark, count in (("+", ahead), ("−", behind)) if count]
    return f"{at_all} ({', '.join(marks)})" if marks else f"{at_all}"


def test_counts_of_seven_are_those_of_the_claims() -> None:
    """The table of counts reads intervals; this reads the verdicts of tables, and the folds."""
    for path in (evidence.COLA, evidence.COLA_FEATURES, evidence.COLA_LAYERS):
        for rule, suffix in evidence.RULES.items():
            found = list(gains(path + suffix, "kep", "msp").values())
            sure = (found.count((better, True)) for better in (True, False))
            count = sum(better for better, _ in found)
            assert page.tally(page.of_table(path, rule)) == counted(count, *sure)
    for pair in evidence.ASKED_PAIRS:
        for rule, key in evidence.CHECKPOINTS.items():
            sides = fold_sides(evidence.COLA_LAYERS_FOLDS, key, pair)
            ahead, behind, at_all = (len(side & SEVEN) for side in sides)
            found = page.tally(page.of_folds(evidence.COLA_LAYERS_FOLDS, pair, rule))
            assert found == counted(at_all, ahead, behind)
