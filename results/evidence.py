"""What the files beside this one say: tables, runs, and differences with their intervals."""

import json
from pathlib import Path
from typing import Any

# a difference and the ends of its interval, in the units of the tables
Interval = list[float]

RESULTS = Path(__file__).parent
# which weights of a run are measured, and what the files of such tables end in
RULES = {"best validation score": "", "best validation NLL": "-nll", "last epoch": "-last"}
# and what runs call those weights
CHECKPOINTS = {rule: suffix.removeprefix("-") or "score" for rule, suffix in RULES.items()}
ENDS = ("difference", "low", "high")

COLA = "cola/tables/table1-cola-paper"
COLA_SMALL = "cola-small/tables/table1-cola-small"
COLA_LIVING = "cola-living/tables/table1-cola-small"
COLA_LIVING_ADDED = "cola-living/tables/table7-cola-small"
COLA_FEATURES = "cola-features/tables/table1-cola-paper"
COLA_FEATURES_ADDED = "cola-features/tables/table7-cola-paper"
COLA_FEATURES_FOLDS = "cola-features/folds"
# without the fold on which settings may have been tried
COLA_FEATURES_FRESH = "cola-features/fresh"
COLA_FOLDS = "cola-folds/folds"
COLA_LAYERS = "cola-layers/tables/table1-cola-cola-features"
COLA_LAYERS_ADDED = "cola-layers/tables/table7-cola-cola-features"
COLA_LAYERS_FOLDS = "cola-layers/folds"
# folds of the training set, and the arm that is held against softmax
FOLDS = {
    COLA_FEATURES_FOLDS: "KEP-SVGP",
    COLA_FOLDS: "KEP-SVGP, noise that stays",
    COLA_LAYERS_FOLDS: "KEP-SVGP",
}
FOLD_PAIRS = (
    "KEP-SVGP, authors' choices − MSP",
    "KEP-SVGP, noise that stays − MSP",
)
ASKED_PAIRS = (
    "KEP-SVGP − MSP",
    "… + MC Dropout − MSP",
    "… + MC Dropout − MC Dropout",
)
COLA_PAIRS = "cola-table5/tables/table5-cola-small"
COLA_PAIRS_PAPER = "cola-table5/tables/table5-cola-cola"
IMDB = "imdb/tables/table1-imdb-small"
IMDB_EIGHT = "imdb-eight/tables/table1-imdb-imdb-small"
IMDB_EIGHT_ADDED = "imdb-eight/tables/table7-imdb-imdb-small"
IMDB_SGPA = "imdb-sgpa/tables/table1-imdb-small"
IMDB_FIVE = "imdb-five/tables/table1-imdb-small"
# the same with token embeddings that begin with a standard deviation of 1
IMDB_SCALE1 = "imdb-scale1/tables/table1-imdb-small"
IMDB_SCALE1_FIVE = "imdb-scale1-five/tables/table1-imdb-small"
CIFAR10 = "cifar10/tables/table1-cifar10-small"


def table(path: str) -> dict[str, Any]:
    """A table that `kepsvgp reproduce` wrote."""
    return json.loads((RESULTS / path).with_suffix(".json").read_text())


def history(run: str) -> list[dict[str, Any]]:
    """What a run wrote of each of its epochs."""
    text = (RESULTS / run / "history.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def sign(column: dict[str, Any]) -> int:
    """1 where more is better, −1 where less is."""
    return 1 if column["title"].endswith("↑") else -1


def intervals(path: str) -> dict[tuple[str, str], dict[str, Interval]]:
    """The rows of a table that the paper compares: their difference in each metric."""
    found = table(path)
    scales = {column["key"]: column["scale"] for column in found["columns"]}
    pairs: dict[tuple[str, str], dict[str, Interval]] = {}
    for claim in found["claims"]:
        pair = claim["better"], claim["worse"]
        if claim["ours"] is None:
            continue
        ends = scaled(claim["ours"], scales[claim["column"]])
        # a pair is told in one order, whichever side the paper's numbers put first
        if pair[::-1] in pairs or not pair[0].startswith("kep"):
            pair, ends = pair[::-1], [-ends[0], -ends[2], -ends[1]]
        pairs.setdefault(pair, {})[claim["column"]] = ends
    return pairs


def scaled(interval: dict[str, float], scale: float) -> Interval:
    """An interval of a file in the units of the tables."""
    return [interval[end] * scale for end in ENDS]


def seeds_ahead(path: str, rule: str = "score") -> dict[str, list[bool]]:
    """Whether KEP-SVGP is ahead of MSP in each metric, seed by seed."""
    found, runs = table(path), (RESULTS / path).parents[1] / "runs"

    def measured(method: str) -> list[dict[str, float]]:
        (row,) = (row for row in found["rows"] if row["key"] == method)
        files = (json.loads((runs / run / "metrics.json").read_text()) for run in row["runs"])
        return [file[rule][method]["test"] for file in files]

    pairs = list(zip(measured("kep"), measured("msp"), strict=True))
    return {
        column["key"]: [
            sign(column) * kep[column["key"]] > sign(column) * msp[column["key"]]
            for kep, msp in pairs
        ]
        for column in found["columns"]
    }


def fold_columns() -> list[dict[str, Any]]:
    """Those of CoLA's tables, after the accuracy."""
    return [{"key": "accuracy", "title": "ACC ↑", "scale": 100}, *table(COLA)["columns"]]


def fold_rule(path: str, rule: str) -> dict[str, Any]:
    """What folds say under a rule that chooses the weights."""
    return table(path)["rules"][CHECKPOINTS[rule]]


def fold_intervals(path: str, rule: str, pair: str) -> dict[str, Interval]:
    """The difference of two arms on held-out folds, in each metric."""
    found = fold_rule(path, rule)["differences"][pair]
    return {c["key"]: scaled(found[c["key"]], c["scale"]) for c in fold_columns()}


def asked_intervals(rule: str, other: str) -> dict[str, Interval]:
    """KEP-SVGP asked through MC dropout, from features alone, against another method."""
    found = table("cola-features/differences")["rules"][CHECKPOINTS[rule]][other]
    return {c["key"]: scaled(found[c["key"]], c["scale"]) for c in table(COLA)["columns"]}
