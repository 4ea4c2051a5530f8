"""The user's own texts: a CSV file with the columns `text` and `label`."""

import csv
import sys
from pathlib import Path

import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.benchmark import Benchmark
from kepsvgp.data.sets import own
from kepsvgp.data.text.prepare import prepare
from kepsvgp.errors import UserError

COLUMNS = ("text", "label")
QUOTES = (
    "A text that begins with a quotation mark must stand in quotation marks as a whole, with "
    "those in it doubled."
)


def load(config: DataConfig) -> Benchmark:
    """Texts of one file, or of a folder with `train.csv`, `test.csv` and perhaps `val.csv`."""
    source = own.place(config, "a CSV file, or a folder with train.csv and test.csv")
    found = own.divide(find_parts(source), config, source=source)
    split = found.split.limited(config)
    wanted = split.rows
    texts = [found.items[row] for row in wanted.tolist()]
    labels = torch.tensor(found.labels)[wanted]
    made = prepare(config, texts, labels, wanted, fingerprint=texts)
    train, val, test = split.parts(made.examples)
    return Benchmark(
        name=config.name,
        task="text",
        classes=found.classes,
        train=train,
        val=val,
        test=test,
        seed=config.seed,
        vocabulary_size=made.vocabulary_size,
        notes=own.repeated(texts, split, "texts"),
        contents=own.contents(texts, labels),
    )


def find_parts(source: Path) -> dict[str, list[tuple[object, str]]]:
    """Texts and their classes, by part."""
    if source.is_file():
        return {"all": read(source)}
    parts: dict[str, Path] = {}
    for name in ("train", "val", "test"):
        files = [path for kind in ("csv", "tsv") if (path := source / f"{name}.{kind}").is_file()]
        if len(files) > 1:
            raise UserError(
                f"{source} must have one file for each part; it has {name}.csv and {name}.tsv. "
                "Take one of them away."
            )
        if files:
            parts[name] = files[0]
    if not {"train", "test"} <= parts.keys():
        raise UserError(
            f"data.path must be a CSV file, or a folder with train.csv and test.csv; {source} "
            "is neither."
        )
    return {name: read(path) for name, path in parts.items()}


def read(path: Path) -> list[tuple[object, str]]:
    """Texts and names of classes; other columns are left alone."""
    # long texts are what this is for
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    pairs = []
    with path.open(encoding="utf-8-sig", newline="") as stream:
        # otherwise a quotation mark that is not closed would swallow the rows behind it
        rows = csv.DictReader(stream, delimiter=delimiter, strict=True)
        try:
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{path} must have a first line with the columns text and label; "
                    f"{' and '.join(missing)} not among: {', '.join(rows.fieldnames or ())}."
                )
            doubled = [name for name in COLUMNS if (rows.fieldnames or ()).count(name) > 1]
            if doubled:
                raise UserError(
                    f"{path} must have one column of each name; it has {' and '.join(doubled)} "
                    "more than once."
                )
            for row in rows:
                if None in row:
                    raise UserError(
                        f"{path} must have no more fields in a row than in its first line; the row "
                        f"that ends at line {rows.line_num} has. Put texts with a comma in quotes."
                    )
                content, label = row["text"], row["label"]
                if not (content or "").strip() or not (label or "").strip():
                    raise UserError(
                        f"{path} must have a text and a label in every row; the row that ends at "
                        f"line {rows.line_num} has not."
                    )
                pairs.append((content, label.strip()))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} must be a CSV file in UTF-8; reading it failed ({error})."
            ) from None
        except csv.Error as error:
            raise UserError(
                f"{path} must be CSV or TSV; after line {rows.line_num} it cannot be read any "
                f"further ({error}). {QUOTES}"
            ) from None
    if not pairs:
        raise UserError(f"{path} must have at least one row below its first line; it has none.")
    return pairs
