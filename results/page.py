"""Fills tables of docs/results*.md, docs/decisions.md and README.md from the files beside this one.

    python results/page.py

A block between `<!-- NAME -->` and `<!-- end -->` is replaced by what `BLOCKS` makes under that
name. A test fails when a page says anything else.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from evidence import (
    ASKED_PAIRS,
    CHECKPOINTS,
    CIFAR10,
    COLA,
    COLA_FEATURES,
    COLA_FEATURES_ADDED,
    COLA_FEATURES_FOLDS,
    COLA_FEATURES_FRESH,
    COLA_FOLDS,
    COLA_LAYERS,
    COLA_LAYERS_ADDED,
    COLA_LAYERS_FOLDS,
    COLA_LIVING,
    COLA_LIVING_ADDED,
    COLA_PAIRS,
    COLA_PAIRS_PAPER,
    COLA_SMALL,
    FOLD_PAIRS,
    FOLDS,
    IMDB,
    IMDB_EIGHT,
    IMDB_EIGHT_ADDED,
    IMDB_FIVE,
    IMDB_SCALE1,
    IMDB_SCALE1_FIVE,
    IMDB_SGPA,
    RESULTS,
    RULES,
    Interval,
    asked_intervals,
    fold_columns,
    fold_intervals,
    fold_rule,
    history,
    intervals,
    seeds_ahead,
    sign,
    table,
)

ROOT = RESULTS.parent
DOCS = ROOT / "docs"
PAGES = (
    DOCS / "results.md",
    DOCS / "results-cola.md",
    DOCS / "decisions.md",
    ROOT / "README.md",
)
BLOCK = re.compile(r"(<!-- (?P<name>(?!end )[\w-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
COMPARED = ("msp", "kep", "deep_ensembles", "kep_ensembles")
LIVING_ROWS = ("msp", "temperature", "mc_dropout", "kfllla", *COMPARED[1:])
ADDED_ROWS = ("kep_temperature", "kep_mc_dropout", "kep_kfllla")


def markdown(path: str) -> str:
    """The cells of such a table as it wrote them: ours above the paper's."""
    text = (RESULTS / path).with_suffix(".md").read_text().split("## The paper's claims")[0]
    return "\n".join(line for line in text.split("\n") if line.startswith("|")) + "\n"


def ours(path: str) -> str:
    """The same without the paper's numbers."""
    lines = markdown(path).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("| *paper*"))


def readme() -> str:
    """CoLA's main table, with KEP-SVGP asked through MC dropout beside KEP-SVGP."""
    (added,) = (
        line.replace("**", "")
        for line in ours(COLA_FEATURES_ADDED).splitlines(keepends=True)
        if line.startswith("| KEP-SVGP + MC Dropout |")
    )
    lines = ours(COLA_FEATURES).splitlines(keepends=True)
    return "".join(line + (added if line.startswith("| KEP-SVGP |") else "") for line in lines)


def counts(path: str) -> str:
    """How many of the paper's claims hold, as the table says it."""
    text = (RESULTS / path).with_suffix(".md").read_text()
    (line,) = (line for line in text.split("\n") if line.startswith("Of "))
    number, rest = line.removeprefix("Of ").split(", ", 1)
    return f"Of the paper's {number} claims, each one method before another in one metric, {rest}\n"


def interval_text(ends: Interval) -> str:
    """A difference with its interval, bold where that has no zero in it."""
    middle, low, high = (f"{end:+.1f}".replace("-", "−") for end in ends)
    # an interval is not broken over lines
    text = f"{middle} [{low},\N{NO-BREAK SPACE}{high}]"
    return f"**{text}**" if ends[1] > 0 or ends[2] < 0 else text


def interval_lines(columns: list[dict[str, Any]], rows: dict[str, dict[str, Interval]]) -> str:
    """A line of differences for every title."""
    texts = {
        title: {key: interval_text(ends) for key, ends in cells.items()}
        for title, cells in rows.items()
    }
    return _lines(columns, texts)


def differences(path: str) -> str:
    """All pairs of a table."""
    found = table(path)
    # a sum is one term of the difference
    titles = {
        row["key"]: f"({row['title']})" if " + " in row["title"] else row["title"]
        for row in found["rows"]
    }
    lines = {
        f"{titles[first]} − {titles[second]}": cells
        for (first, second), cells in intervals(path).items()
    }
    return interval_lines(found["columns"], lines)


def differences_by_rule(path: str, pair: tuple[str, str]) -> str:
    """One pair under each rule that chooses the weights."""
    lines = {rule: intervals(path + suffix)[pair] for rule, suffix in RULES.items()}
    return interval_lines(table(path)["columns"], lines)


def against_softmax(tables: dict[str, str]) -> str:
    """KEP-SVGP − MSP in each of the tables, and in how many seeds KEP-SVGP is ahead."""
    first, *columns = table(COLA)["columns"]
    lines, scores = {}, set()
    for title, path in tables.items():
        if path in FOLDS:
            score, (found, ahead) = first, folds_against_softmax(path)
        else:
            score, found = table(path)["columns"][0], intervals(path)["kep", "msp"]
            ahead = seeds_ahead(path)
        cells = {
            key: f"{interval_text(ends).replace(' [', '<br>[')}"
            f"<br>{sum(ahead[key])} of {len(ahead[key])}"
            for key, ends in found.items()
        }
        lines[title] = cells | {"score": cells[score["key"]]}
        scores.add(score["title"].removesuffix(" ↑"))
    return _lines([{"key": "score", "title": " or ".join(sorted(scores)) + " ↑"}, *columns], lines)


def folds_against_softmax(path: str) -> tuple[dict[str, Interval], dict[str, list[bool]]]:
    """The same of held-out folds: differences, and whether KEP-SVGP is ahead, seed by seed."""
    rule = "best validation score"
    kep, msp = (fold_rule(path, rule)["results"][arm] for arm in (FOLDS[path], "MSP"))
    ahead = {
        column["key"]: [
            sign(column) * ours > sign(column) * theirs
            for ours, theirs in zip(kep[column["key"]], msp[column["key"]], strict=False)
        ]
        for column in fold_columns()
    }
    return fold_intervals(path, rule, f"{FOLDS[path]} − MSP"), ahead


def _lines(columns: list[dict[str, Any]], rows: dict[str, dict[str, str]]) -> str:
    lines = [
        "| | " + " | ".join(column["title"] for column in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for title, cells in rows.items():
        values = " | ".join(cells.get(column["key"], "–") for column in columns)
        lines.append(f"| {title} | {values} |")
    return "\n".join(lines) + "\n"


def selection(path: str, rows: tuple[str, ...]) -> str:
    """Some rows of a table under each rule that chooses the weights."""
    tables = {rule: table(path + suffix) for rule, suffix in RULES.items()}
    columns = next(iter(tables.values()))["columns"]
    lines = [
        "| weights of the | method | " + " | ".join(c["title"] for c in columns) + " |",
        "| --- | --- |" + " ---: |" * len(columns),
    ]
    for rule, found in tables.items():
        titles = {row["key"]: row["title"] for row in found["rows"]}
        cells = {(cell["row"], cell["column"]): cell for cell in found["cells"]}
        for row in rows:
            texts = [cell_text(cells[row, c["key"]], c["scale"]) for c in columns]
            lines.append(f"| {rule} | {titles[row]} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


# trials of one seed on CoLA with the paper's schedule; most were stopped early
TRIALS = {
    "cola/runs/cola-msp-s0-76122b1af2": "softmax",
    "trials50/softmax-dropout0.1": "softmax, dropout 0.1",
    "trials50/softmax-dropout0.5": "softmax, dropout 0.5",
    "trials50/softmax-decay5e-5": "softmax, weight decay 5·10⁻⁵",
    "cola-elbo/runs/cola-kep-s0-a91633d63c": "KEP: landmarks, joint noise, KL / N",
    "trials50/dropout0.1": "… dropout 0.1",
    "trials50/dropout0.5": "… dropout 0.5",
    "trials50/all-layers": "… in both layers",
    "trials50/dual": "… dual projection",
    "trials50/token": "… noise by token",
    "trials50/scale1": "… initial scale 1",
    "trials50/kl100": "… KL · 100 / N",
    "trials50/whole-kl": "… whole KL",
    "trials50/authors": "… noise by token, whole KL, average of logits",
    "trials50/authors-dropout0.5": "… noise by token, whole KL, dropout 0.5",
    "trials50/decay5e-5": "… noise by token, whole KL, weight decay 5·10⁻⁵",
    "trials50/decay1e-4": "… noise by token, whole KL, weight decay 10⁻⁴",
    "trials50/decay3e-4": "… noise by token, whole KL, weight decay 3·10⁻⁴",
    "trials50/deep": "KEP in both layers: dual, rank 32, initial scale 1, 3 KL / N, η = 0.1",
}
# trials on CoLA over ten epochs: dual projection, initial scale 1, η = 0.1
LIVING = {
    "last-rank64": "last layer, rank 64, KL / N",
    "last-rank64-kl10": "last layer, rank 64, 10 KL / N",
    "both-rank5": "both layers, rank 5, 3 KL / N",
    "both-rank16": "both layers, rank 16, 3 KL / N",
    "both-rank32-s0": "both layers, rank 32, 3 KL / N",
    "both-rank32-s1": "… second seed",
    "both-rank32-embeddings0.1": "… first seed, embeddings of scale 0.1",
}


def trials() -> str:
    """What validation data say of each trial on CoLA."""
    lines = [
        "| dropout 0.3 unless said | epochs | MCC, NLL at 20 | best MCC | its NLL | least NLL |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, title in TRIALS.items():
        values = [entry["val"] for entry in history(name)]
        best = max(values, key=lambda val: val["mcc"])
        # two trials were stopped before their twentieth epoch
        early = values[19] if len(values) >= 20 else None
        after = "–" if early is None else f"{early['mcc']:.3f}, {early['nll']:.3f}"
        least = min(val["nll"] for val in values)
        lines.append(
            f"| {title} | {len(values)} | {after} | {best['mcc']:.3f} | {best['nll']:.3f} "
            f"| {least:.3f} |"
        )
    return "\n".join(lines) + "\n"


def living() -> str:
    """What validation data say of KEP layers that keep their noise."""
    lines = [
        "| | best MCC | its NLL | least NLL | last NLL | last KL |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, title in LIVING.items():
        entries = history(f"trials10/{name}")
        values = [entry["val"] for entry in entries]
        best = max(values, key=lambda val: val["mcc"])
        least = min(val["nll"] for val in values)
        lines.append(
            f"| {title} | {best['mcc']:.3f} | {best['nll']:.3f} | {least:.3f} "
            f"| {values[-1]['nll']:.3f} | {entries[-1]['train']['kl']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def asked() -> str:
    """KEP-SVGP asked through MC dropout, against softmax and against five of it."""
    lines = {
        f"− {other}, {rule}": asked_intervals(rule, other)
        for other in ("MSP", "Deep Ensembles")
        for rule in RULES
    }
    return interval_lines(table(COLA)["columns"], lines)


def without_attention() -> str:
    """Means over the seeds that the Transformer without attention was trained with."""
    columns, lines = table(COLA)["columns"], {}
    for title, pattern, method in (
        ("no attention", "no-attention/seed{}", "msp"),
        ("MSP", "cola-features/runs/cola-msp-s{}-*", "msp"),
        ("KEP-SVGP", "cola-features/runs/cola-kep-s{}-*", "kep"),
    ):
        files = []
        for seed in range(3):
            (folder,) = RESULTS.glob(pattern.format(seed))
            files.append(json.loads((folder / "metrics.json").read_text()))
        for rule, key in CHECKPOINTS.items():
            values = [file[key][method]["test"] for file in files]
            means = {
                c["key"]: statistics.fmean(value[c["key"]] for value in values) for c in columns
            }
            lines[f"{title}, {rule}"] = {
                c["key"]: f"{means[c['key']] * c['scale']:.2f}" for c in columns
            }
    return _lines(columns, lines)


def folds(path: str, *rules: str) -> str:
    """What held-out folds of the training set say of every arm, under each of the rules."""
    columns = fold_columns()
    lines = [
        "| weights of the | method | "
        + " | ".join(column["title"] for column in columns)
        + " | called unacceptable |",
        "| --- | --- |" + " ---: |" * (len(columns) + 1),
    ]
    for rule in rules:
        measured = fold_rule(path, rule)
        for arm in (arm["name"] for arm in table(path)["arms"]):
            values = measured["results"][arm]
            cells = [
                f"{statistics.fmean(values[column['key']]) * column['scale']:.2f}"
                for column in columns
            ]
            called = f"{100 * measured['predicted'][arm][0]:.1f} %"
            lines.append(f"| {rule} | {arm} | {' | '.join(cells)} | {called} |")
    return "\n".join(lines) + "\n"


def fold_differences(path: str, *pairs: str) -> str:
    """Some pairs of arms under each rule."""
    lines = {
        f"{pair.replace('…', 'KEP-SVGP')}, {rule}": fold_intervals(path, rule, pair)
        for pair in pairs
        for rule in RULES
    }
    return interval_lines(fold_columns(), lines)


def of_seven() -> str:
    """In how many metrics KEP-SVGP is ahead on CoLA, and beyond noise, under each rule."""
    lines = [
        "| | " + " | ".join(RULES) + " |",
        "| --- |" + " ---: |" * len(RULES),
        *(
            f"| {title} | {' | '.join(tally(source(rule)) for rule in RULES)} |"
            for title, source in SETTINGS
        ),
    ]
    return "\n".join(lines) + "\n"


# ahead and behind
MARKS = (("+", 1), ("−", -1))


def tally(found: dict[str, Interval]) -> str:
    """The metrics ahead; in brackets those ahead, and those behind, beyond noise."""
    signed = [
        [sign(column) * end for end in found[column["key"]]] for column in table(COLA)["columns"]
    ]
    beyond = {mark: sum(min(by * e for e in ends) > 0 for ends in signed) for mark, by in MARKS}
    marked = ", ".join(f"{mark}{count}" for mark, count in beyond.items() if count)
    return f"{sum(middle > 0 for middle, *_ in signed)}" + (f" ({marked})" if marked else "")


def of_table(path: str, rule: str) -> dict[str, Interval]:
    """KEP-SVGP − MSP in a table."""
    return intervals(path + RULES[rule])["kep", "msp"]


def of_folds(path: str, pair: str, rule: str) -> dict[str, Interval]:
    """A pair of arms on held-out folds."""
    return fold_intervals(path, rule, pair)


# table 1 of CoLA with the paper's schedule: title, its table and row
READ = {
    "softmax, embeddings beside the features": ("cola", "msp"),
    "softmax, features alone": ("cola-features", "msp"),
    "KEP-SVGP, authors' choices, embeddings beside the features": ("cola", "kep"),
    "KEP-SVGP, noise that stays, features alone": ("cola-features", "kep"),
}


def read() -> str:
    """What validation data say of what CoLA's models read: means over the seeds."""
    lines = [
        "| | best MCC | its NLL | least NLL | last NLL |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for title, (folder, key) in READ.items():
        (row,) = (
            row for row in table(f"{folder}/tables/table1-cola-paper")["rows"] if row["key"] == key
        )
        seeds = [[entry["val"] for entry in history(f"{folder}/runs/{run}")] for run in row["runs"]]
        best = [max(values, key=lambda val: val["mcc"]) for values in seeds]
        numbers = (
            statistics.fmean(val["mcc"] for val in best),
            statistics.fmean(val["nll"] for val in best),
            statistics.fmean(min(val["nll"] for val in values) for values in seeds),
            statistics.fmean(values[-1]["nll"] for values in seeds),
        )
        lines.append(f"| {title} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(lines) + "\n"


EMBEDDINGS = {
    "imdb-softmax": ("IMDB, softmax", "accuracy"),
    "imdb-kep": ("IMDB, KEP-SVGP", "accuracy"),
    "cola-softmax": ("CoLA, softmax", "mcc"),
    "cola-kep": ("CoLA, KEP-SVGP", "mcc"),
}
SCALES = ("1", "0.1", "0.02")


def embeddings() -> str:
    """What validation data say of the scale that token embeddings begin with."""
    lines = [
        "| best score, least NLL, last NLL | " + " | ".join(SCALES) + " |",
        "| --- |" + " ---: |" * len(SCALES),
    ]
    for name, (title, score) in EMBEDDINGS.items():
        cells = []
        for scale in SCALES:
            values = [entry["val"] for entry in history(f"embeddings/{name}-{scale}")]
            least = min(val["nll"] for val in values)
            best = max(val[score] for val in values)
            cells.append(f"{best:.3f}, {least:.3f}, {values[-1]['nll']:.3f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell_text(cell: dict[str, Any], scale: float) -> str:
    """Mean ± standard deviation, as the tables have it."""
    text = f"{cell['mean'] * scale:.2f}"
    return text if cell["sd"] is None else f"{text} ± {cell['sd'] * scale:.2f}"


# what the README and the page of results show first
MAIN = {
    "CoLA, features alone, 50 epochs, 527 sentences": COLA_FEATURES,
    "CoLA, features alone, 50 epochs, 7,696 held-out sentences": COLA_FEATURES_FOLDS,
    "CoLA, embeddings too, 10 epochs, 7,696 held-out sentences": COLA_FOLDS,
    "IMDB, 3 epochs, 25,000 reviews": IMDB,
    "IMDB, 8 epochs, 25,000 reviews": IMDB_EIGHT,
    "CIFAR-10, 10,000 images": CIFAR10,
}
# CoLA in every setting
TABLE1 = {
    "50 epochs, features alone, noise that stays": COLA_FEATURES,
    "50 epochs, features alone, noise that stays, on 7,696 held-out sentences": (
        COLA_FEATURES_FOLDS
    ),
    "50 epochs": COLA,
    "30 epochs, layers side by side, noise that stays": COLA_LAYERS,
    "20 epochs, layers side by side, noise that stays, on 7,696 held-out sentences": (
        COLA_LAYERS_FOLDS
    ),
    "10 epochs": COLA_SMALL,
    "10 epochs, noise that stays": COLA_LIVING,
    "… on 7,696 held-out sentences": COLA_FOLDS,
}

# CoLA's settings, and where each is held against softmax under a rule
FRESH = "cola-layers/fresh"
Setting = tuple[str, Callable[[str], dict[str, Interval]]]


def on_folds(title: str, path: str) -> list[Setting]:
    """Held-out folds, without MC dropout, with it for KEP-SVGP and with it on both sides."""
    titles = (title, "… KEP-SVGP through MC dropout", "… both through MC dropout")
    return [
        (name, partial(of_folds, path, pair))
        for name, pair in zip(titles, ASKED_PAIRS, strict=True)
    ]


SETTINGS: list[Setting] = [
    ("features alone, 50 epochs", partial(of_table, COLA_FEATURES)),
    ("… KEP-SVGP through MC dropout", partial(asked_intervals, other="MSP")),
    *on_folds("… 7,696 held-out sentences", COLA_FEATURES_FOLDS),
    *on_folds("… 6,156 of these, without the first fold", COLA_FEATURES_FRESH),
    ("layers side by side, 30 epochs", partial(of_table, COLA_LAYERS)),
    *on_folds("… 20 epochs, 7,696 held-out sentences", COLA_LAYERS_FOLDS),
    *on_folds("… 4,617 of these, which had chosen nothing", FRESH),
    ("embeddings too, noise that stays, 10 epochs", partial(of_table, COLA_LIVING)),
    ("… 7,696 held-out sentences", partial(of_folds, COLA_FOLDS, FOLD_PAIRS[1])),
    ("embeddings too, authors' choices, 10 epochs", partial(of_table, COLA_SMALL)),
    ("… 7,696 held-out sentences", partial(of_folds, COLA_FOLDS, FOLD_PAIRS[0])),
    ("embeddings too, authors' choices, 50 epochs", partial(of_table, COLA)),
]

BLOCKS: dict[str, Callable[[], str]] = {
    "digits-defaults": partial(ours, "defaults/tables/defaults-digits-small"),
    "cola-defaults": partial(ours, "cola-small/tables/defaults-cola-small"),
    "cola-trials": trials,
    "cola-living": living,
    "cola-read": read,
    "embeddings": embeddings,
    "cola-table1": partial(markdown, COLA),
    "cola-differences": partial(differences, COLA),
    "cola-counts": partial(counts, COLA),
    "cola-table2": partial(ours, "cola/tables/table2-cola-paper"),
    "cola-table7": partial(markdown, "cola/tables/table7-cola-paper"),
    "cola-selection": partial(selection, COLA, COMPARED),
    "cola-elbo": partial(selection, "cola-elbo/tables/table1-cola-paper", ("msp", "kep")),
    "cola-small-table1": partial(ours, COLA_SMALL),
    "cola-small-differences": partial(differences_by_rule, COLA_SMALL, ("kep", "msp")),
    "cola-small-selection": partial(selection, COLA_SMALL, COMPARED),
    "cola-living-differences": partial(differences_by_rule, COLA_LIVING, ("kep", "msp")),
    "cola-living-selection": partial(selection, COLA_LIVING, LIVING_ROWS),
    "cola-living-added": partial(selection, COLA_LIVING_ADDED, ADDED_ROWS),
    "cola-living-table2": partial(ours, "cola-living/tables/table2-cola-small"),
    "cola-features-table1": partial(markdown, COLA_FEATURES),
    "cola-features-folds": partial(folds, COLA_FEATURES_FOLDS, *RULES),
    "cola-features-folds-differences": partial(
        fold_differences, COLA_FEATURES_FOLDS, *ASKED_PAIRS[::2]
    ),
    "cola-features-fresh": partial(fold_differences, COLA_FEATURES_FRESH, *ASKED_PAIRS[::2]),
    "cola-features-differences": partial(differences_by_rule, COLA_FEATURES, ("kep", "msp")),
    "cola-features-selection": partial(selection, COLA_FEATURES, LIVING_ROWS),
    "cola-features-added": partial(selection, COLA_FEATURES_ADDED, ADDED_ROWS),
    "cola-features-asked": asked,
    "cola-no-attention": without_attention,
    "cola-features-table2": partial(ours, "cola-features/tables/table2-cola-paper"),
    "cola-folds": partial(folds, COLA_FOLDS, *RULES),
    "cola-folds-differences": partial(fold_differences, COLA_FOLDS, *FOLD_PAIRS),
    "cola-screen": partial(folds, "cola-folds/screen", *list(RULES)[::2]),
    "cola-table5": partial(markdown, COLA_PAIRS),
    "cola-table5-differences": partial(differences, COLA_PAIRS),
    "cola-table5-paper": partial(ours, COLA_PAIRS_PAPER),
    "cola-table5-paper-differences": partial(differences, COLA_PAIRS_PAPER),
    "cifar10-table1": partial(markdown, CIFAR10),
    "cifar10-differences": partial(differences, CIFAR10),
    "cifar10-counts": partial(counts, CIFAR10),
    "cifar10-rules": partial(differences_by_rule, CIFAR10, ("kep", "msp")),
    "cifar10-table2": partial(markdown, "cifar10/tables/table2-cifar10-small"),
    "cifar10-table2-differences": partial(differences, "cifar10/tables/table2-cifar10-small"),
    "cifar10-table3": partial(markdown, "cifar10/tables/table3-cifar10-small"),
    "cifar10-table3-differences": partial(differences, "cifar10/tables/table3-cifar10-small"),
    "cifar10-landmark": partial(ours, "cifar10-landmark/tables/table1-cifar10-small"),
    "cifar10-table6": partial(markdown, "cifar10/tables/table6-cifar10-small"),
    "cifar10-table9": partial(markdown, "cifar10/tables/table9-cifar10-small"),
    "imdb-table1": partial(markdown, IMDB),
    "imdb-differences": partial(differences, IMDB),
    "imdb-counts": partial(counts, IMDB),
    "imdb-table7": partial(ours, "imdb/tables/table7-imdb-small"),
    "imdb-eight": partial(ours, IMDB_EIGHT),
    "imdb-eight-rules": partial(differences_by_rule, IMDB_EIGHT, ("kep", "msp")),
    "imdb-eight-selection": partial(selection, IMDB_EIGHT, ("temperature", *COMPARED)),
    "imdb-eight-added": partial(ours, IMDB_EIGHT_ADDED),
    "imdb-five": partial(ours, IMDB_FIVE),
    "imdb-sgpa": partial(markdown, IMDB_SGPA),
    "imdb-scale1-five": partial(ours, IMDB_SCALE1_FIVE),
    "imdb-scale1-rules": partial(differences_by_rule, IMDB_SCALE1, ("kep", "msp")),
    "cola-layers-screen": partial(folds, "cola-layers/screen", *list(RULES)[::2]),
    "cola-layers-differences": partial(differences_by_rule, COLA_LAYERS, ("kep", "msp")),
    "cola-layers-selection": partial(selection, COLA_LAYERS, LIVING_ROWS),
    "cola-layers-added": partial(selection, COLA_LAYERS_ADDED, ADDED_ROWS),
    "cola-layers-folds": partial(folds, COLA_LAYERS_FOLDS, *RULES),
    "cola-layers-folds-differences": partial(fold_differences, COLA_LAYERS_FOLDS, *ASKED_PAIRS),
    "cola-layers-fresh": partial(fold_differences, "cola-layers/fresh", *ASKED_PAIRS),
    "cola-of-seven": of_seven,
    "against-softmax": partial(against_softmax, TABLE1),
    "against-softmax-main": partial(against_softmax, MAIN),
    "readme": readme,
}


def filled(text: str) -> str:
    """A page with its blocks as the files have them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found['name']]()}\n", text)


def main() -> int:
    """Writes the pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
