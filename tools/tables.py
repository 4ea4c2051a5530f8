"""Fills the tables of the pages from the numbers in results/: `make tables`.

A comment such as `<!-- table cola-features table1 paper -->` names the function and its arguments
that make all up to `<!-- end -->`. Files of results/ have, for each row and each rule for the epoch
(`score`, `nll`, `last`), the metrics of every seed, and differences with their 95 % intervals over
the test examples. Intervals over seeds are computed here.
"""

import json
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- (?P<call>(?!end )[^>]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
RULES = {"score": "best validation score", "nll": "best validation NLL", "last": "last epoch"}
# KEP-SVGP against softmax: the title, its file and table, the row of each, and these with
# temperature scaling where that was measured
PLAIN, SCALED = ("table1", "kep", "msp"), ("table7", "kep_temperature", "temperature")
NOISE = "KEP-SVGP, persistent noise"
MAIN: dict[str, tuple[str, tuple[str, str, str], tuple[str, str, str] | None]] = {
    "CoLA, features alone": ("cola-features", PLAIN, SCALED),
    "CoLA, persistent noise": (
        "cola-folds",
        ("folds", NOISE, "MSP"),
        ("folds", f"{NOISE} + TS", "Temperature Scaling"),
    ),
    "CoLA, nearest to the paper": ("cola", PLAIN, SCALED),
    "IMDB, 3 epochs": ("imdb", PLAIN, SCALED),
    "IMDB, 8 epochs": ("imdb-eight", PLAIN, SCALED),
    "CIFAR-10": ("cifar10", PLAIN, None),
    "CIFAR-10, authors' landmarks": ("cifar10-landmark", PLAIN, None),
}
Table = Mapping[str, Any]


def load(file: str, name: str, part: str = "tables") -> Table:
    """One table of a file."""
    return json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))[part][name]


def table(file: str, name: str, *options: str) -> str:
    """Mean ± standard deviation of every row, the best in bold; `paper` adds its numbers."""
    found = load(file, name)
    columns = found["columns"]
    best = {column["key"]: _best(found, column) for column in columns}
    lines = []
    for key, row in found["rows"].items():
        texts = [
            f"**{text}**" if best[column["key"]] == key else text
            for column in columns
            for text in [_spread(_measured(row), column)]
        ]
        lines.append([row["title"], *texts])
        if "paper" in options and "paper" in row:
            lines.append(["*paper*", *(_paper(row["paper"].get(c["key"], [])) for c in columns)])
    return _markdown(["Method", *(c["title"] for c in columns)], lines)


def differences(file: str, name: str, *pairs: str) -> str:
    """Some pairs of rows under each rule, with their intervals over the test examples."""
    found = load(file, name)
    lines = [
        [
            f"{_pair_title(found, pair)}, {title}",
            *(_interval(found["differences"][rule][pair], column) for column in found["columns"]),
        ]
        for pair in pairs
        for rule, title in RULES.items()
        if rule in found["differences"]
    ]
    return _markdown(["", *(column["title"] for column in found["columns"])], lines)


def seeds(file: str, name: str, *pairs: str) -> str:
    """Some pairs of rows under each rule, with their intervals over the seeds."""
    found = load(file, name)
    lines = [
        [f"{_pair_title(found, pair)}, {title}", *(_interval(cells, c) for c in found["columns"])]
        for pair in pairs
        for rule, title in RULES.items()
        if (cells := over_seeds(found, *pair.split(" − "), rule=rule))
    ]
    return _markdown(["", *(column["title"] for column in found["columns"])], lines)


def against_softmax(*options: str) -> str:
    """KEP-SVGP − softmax in the main settings; `scaled` has temperature scaling on both sides."""
    others = load("cola", "table1")["columns"][1:]
    lines = []
    for title, (file, plain, scaled) in MAIN.items():
        if pair := scaled if "scaled" in options else plain:
            found = load(file, pair[0])
            cells = over_seeds(found, *pair[1:])
            columns = (main_score(found), *others)
            lines.append([title, *(_interval(cells, column) for column in columns)])
    return _markdown(["", "ACC or MCC ↑", *(column["title"] for column in others)], lines)


def per_seed(found: Table, ours: str, theirs: str, key: str, rule: str = "score") -> list[float]:
    """The difference of two rows in one metric, seed by seed."""
    pairs = (found["rows"][row].get(rule, {}).get(key, []) for row in (ours, theirs))
    # a row may have more seeds than the other; both begin with the same
    return [a - b for a, b in zip(*pairs, strict=False)]


def over_seeds(
    found: Table, ours: str, theirs: str, rule: str = "score"
) -> dict[str, tuple[float, float, float]]:
    """The mean difference of two rows in each metric, and its 95 % interval over seeds (t)."""
    cells = {}
    for column in found["columns"]:
        if len(values := per_seed(found, ours, theirs, column["key"], rule)) > 1:
            mean = statistics.fmean(values)
            error = statistics.stdev(values) / len(values) ** 0.5
            half = float(t.ppf(0.975, len(values) - 1)) * error
            cells[column["key"]] = (mean, mean - half, mean + half)
    return cells


# what the paper's appendix says of its experiments, in the words of a configuration
_IMAGES = {
    "model.depth": 7, "model.patch_size": 4, "model.dim": 384, "model.mlp_dim": 384,
    "model.num_heads": 12, "model.dropout": 0.1, "model.kep_layers": 1, "model.kep.rank": 10,
    "model.kep.merge": "concat", "objective.ksvd_weight": 10, "train.epochs": 300,
    "train.warmup_epochs": 5, "train.batch_size": 128, "train.lr": 1e-3, "train.min_lr": 1e-5,
    "train.schedule": "cosine", "train.select": "score", "train.score": "accuracy",
    "prediction.num_samples": 10,
}  # fmt: skip
_TEXTS = {
    "model.kep.merge": "add", "train.warmup_epochs": 5, "train.batch_size": 32,
    "train.schedule": "cosine", "prediction.num_samples": 10,
}  # fmt: skip
APPENDIX: dict[str, dict[str, Any]] = {
    "cifar10": _IMAGES,
    "cifar100": _IMAGES,
    "imdb": _TEXTS | {
        "data.split": "paper", "data.max_length": 512, "model.depth": 1,
        "model.embedding_dim": 128, "model.dim": 128, "model.mlp_dim": 128, "model.num_heads": 8,
        "model.dropout": 0.1, "model.kep_layers": 1, "model.kep.rank": 10,
        "objective.ksvd_weight": 10, "train.epochs": 20, "train.lr": 1e-3, "train.min_lr": 1e-4,
        "train.select": "score", "train.score": "accuracy",
    },
    "cola": _TEXTS | {
        "model.depth": 2, "model.embedding_dim": 128, "model.dim": 256, "model.num_heads": 4,
        "model.kep_layers": 1, "model.kep.rank": 5, "objective.ksvd_weight": 1,
        "train.epochs": 50, "train.lr": 5e-4, "train.min_lr": 1e-5,
    },
}  # fmt: skip
# and what is no setting here, or is one of something else
_BESIDE = {
    "optimiser": "Adam", "feature maps": "cosine", "seeds, members of an ensemble": "5",
}  # fmt: skip
BESIDE: dict[str, dict[str, str]] = {
    "cifar10": _BESIDE | {
        "examples": "45,000 / 5,000 / 10,000", "tokens": "64, none for the class",
        "depth in tables 4 and 8": "5 (CIFAR-100: 6)",
    },
    "imdb": _BESIDE | {"examples": "35,000 / 5,000 / 10,000", "depth in tables 4 and 8": "1"},
    "cola": _BESIDE | {
        "examples": "8,551 (of which *855* validate), 527; *program: 6,355 / 907 / 1,816*",
        "depth in tables 4 and 8": "2",
        "contextual features": "*MiniLM in the place of ELMo*",
    },
}  # fmt: skip
# what the authors' program sets beside that
_PROGRAM_IMAGES = {
    "train.decay_epochs": 300, "data.normalisation": "program",
    "model.kep.num_landmarks": "distinct",
}  # fmt: skip
PROGRAM: dict[str, dict[str, Any]] = {
    "all": {
        "model.kep.projection": "landmark", "model.kep.noise": "token",
        "model.kep.ksvd_loss": "objective", "model.kep.start": "program",
        "objective.kl_weight": "whole", "prediction.average": "logits", "train.clip_norm": None,
        "train.weight_decay": 5e-5,
    },
    "cifar10": _PROGRAM_IMAGES,
    "cifar100": _PROGRAM_IMAGES,
    "imdb": {
        "train.decay_epochs": 20, "model.embedding_scale": 1, "model.kep.num_landmarks": "distinct",
    },
    "cola": {
        "train.decay_epochs": 50, "train.select": "score", "train.score": "mcc",
        "data.split": "program", "data.max_length": 100, "model.mlp_dim": 256,
        "model.embedding_scale": 1, "model.dropout": 0.1, "model.kep.num_landmarks": 10,
    },
}  # fmt: skip


def settings() -> str:
    """Every setting that the paper prints or its program has, as the variants have it."""
    from kepsvgp.config.file import load_config

    def cell(dataset: str, name: str) -> str:
        if name in APPENDIX[dataset]:
            return f"{APPENDIX[dataset][name]}"
        if name not in PROGRAM["all"] | PROGRAM[dataset]:
            return "–"
        variants = [load_config(dataset, variant=v) for v in ("text", "program", "ours")]
        values = [f"{config.identity()[name]}" for config in variants]
        return f"*{' / '.join(dict.fromkeys(values) if len(set(values)) == 1 else values)}*"

    # CIFAR-100 has the settings of CIFAR-10
    columns = {"CIFAR": "cifar10", "IMDB": "imdb", "CoLA": "cola"}
    every = [*APPENDIX.values(), *PROGRAM.values()]
    lines = [
        [f"`{name}`", *(cell(dataset, name) for dataset in columns.values())]
        for name in dict.fromkeys(name for part in every for name in part)
    ]
    lines += [
        [name, *(BESIDE[dataset].get(name, "–") for dataset in columns.values())]
        for name in dict.fromkeys(name for part in BESIDE.values() for name in part)
    ]
    return _markdown(["", *columns], lines)


KINDS: dict[str, Callable[..., str]] = {
    "table": table,
    "differences": differences,
    "seeds": seeds,
    "against-softmax": against_softmax,
    "settings": settings,
}


def _measured(row: Table) -> Table:
    """Under the first rule for the epoch that the row has."""
    return next(row[rule] for rule in RULES if rule in row)


def _sign(column: Table) -> int:
    return 1 if column["title"].endswith("↑") else -1


def main_score(found: Table) -> Table:
    """MCC where it is measured, as on CoLA, or else the accuracy."""
    by_key = {column["key"]: column for column in found["columns"]}
    return by_key.get("mcc", by_key.get("accuracy", {}))


def _best(found: Table, column: Table) -> str:
    means = {
        key: _sign(column) * statistics.fmean(_measured(row)[column["key"]])
        for key, row in found["rows"].items()
        if column["key"] in _measured(row)
    }
    # a column without an arrow has no better side
    is_ranked = column["title"].endswith(("↑", "↓"))
    return max(means, key=lambda key: means[key], default="") if is_ranked else ""


def _spread(measured: Table, column: Table) -> str:
    values = [value * column["scale"] for value in measured.get(column["key"], [])]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def _paper(numbers: Sequence[float | None]) -> str:
    texts = [f"{number:.2f}" for number in numbers if number is not None]
    return f"*{' ± '.join(texts)}*" if texts else ""


def _interval(cells: Mapping[str, Sequence[float]], column: Table) -> str:
    """A difference and its interval, bold where that leaves zero out."""
    if column["key"] not in cells:
        return "–"
    middle, low, high = (end * column["scale"] for end in cells[column["key"]])
    texts = [f"{end:+.1f}".replace("-", "−") for end in (middle, low, high)]
    # an interval is not broken over lines
    text = f"{texts[0]} [{texts[1]},\N{NO-BREAK SPACE}{texts[2]}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _pair_title(found: Table, pair: str) -> str:
    # a sum is one term of the difference
    titles = [found["rows"][key]["title"] for key in pair.split(" − ")]
    return " − ".join(f"({t})" if " + " in t and len(t) < 10 else t for t in titles)


def _markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    marks = ["---"] + ["---:"] * (len(heads) - 1)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, marks, *lines))


def filled(text: str) -> str:
    """A page with its tables as the files have them now."""

    def made(match: re.Match[str]) -> str:
        kind, *rest = shlex.split(match["call"])
        return f"{match[1]}\n{KINDS[kind](*rest)}\n"

    return BLOCK.sub(made, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
