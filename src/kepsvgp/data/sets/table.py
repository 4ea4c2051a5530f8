"""The user's own texts: a CSV file with a column of texts and one of labels."""

from pathlib import Path

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.benchmark import Benchmark
from kepsvgp.data.sets import own
from kepsvgp.data.tables import read_table
from kepsvgp.data.text.prepare import prepare
from kepsvgp.errors import UserError


def load(config: DataConfig) -> Benchmark:
    """Texts of one file, or of a folder with `train.csv`, `test.csv` and perhaps `val.csv`."""
    source = own.place(config, "a CSV file, or a folder with train.csv and test.csv")
    found = own.divide(find_parts(source, config), config, source=source)
    made = prepare(config, found.items, found.labels, found.split.rows, fingerprint=found.items)
    return Benchmark(
        config.name,
        "text",
        found.classes,
        *found.split.parts(made.examples),
        config.seed,
        vocabulary_size=made.vocabulary_size,
        notes=own.repeated(found.items, found.split, "texts"),
        contents=own.contents(found.items, found.labels),
    )


def find_parts(source: Path, config: DataConfig) -> dict[str, list[tuple[object, str]]]:
    """Texts and their classes, by part."""
    if source.is_file():
        return {"all": read(source, config.text_column, config.label_column)}
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
    columns = config.text_column, config.label_column
    return {name: read(path, *columns) for name, path in parts.items()}


def read(path: Path, text_column: str, label_column: str) -> list[tuple[object, str]]:
    """Texts and names of classes; other columns are left alone."""
    columns = {"--text-column": text_column, "--label-column": label_column}
    pairs = []
    for row in read_table(path, columns):
        if row.problem is not None:
            raise UserError(f"{path}, the row that ends at line {row.line}: {row.problem}.")
        text, label = row.fields
        pairs.append((text, label.strip()))
    if not pairs:
        raise UserError(f"{path} must have at least one row below its first line; it has none.")
    return pairs
