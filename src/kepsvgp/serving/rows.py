"""New inputs one after another, from files of any length, with what is wrong in their place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kepsvgp.data import pictures, tables
from kepsvgp.data.tables import fault, read_table
from kepsvgp.errors import UserError

TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")


class Row(NamedTuple):
    """One input: its number or file name, and its text or path, or what is wrong with it."""

    name: str
    content: Any
    problem: str | None = None
    position: int = 0
    """How far into the source, for a progress bar: in bytes or files."""


class Source(NamedTuple):
    """The inputs of a file or folder, and the last position that there can be."""

    rows: Iterator[Row]
    size: int


def open_texts(path: Path, column: str) -> Source:
    """The texts in a CSV, TSV or JSONL file, as they are read."""
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in TEXT_SUFFIXES:
        came = "its name ends otherwise" if path.is_file() else "there is no such file"
        raise UserError(
            f"{path} must be a file of texts, which this model takes, named "
            f".csv, .tsv, .jsonl or .ndjson; {came}."
        )
    read = _csv if suffix in (".csv", ".tsv") else _jsonl
    return Source(_readable(path, read(path, column)), path.stat().st_size)


def open_images(path: Path) -> Source:
    """The images in a folder and the folders in it, or a single one."""
    files = pictures.find(path) if path.is_dir() else [path]
    is_texts = path.is_file() and path.suffix.lower() in TEXT_SUFFIXES
    if not path.exists() or not files or is_texts:
        came = "it has none" if path.exists() else "there is no such path"
        came = "it is a file of texts" if is_texts else came
        raise UserError(
            f"{path} must be an image, or a folder of images ({', '.join(pictures.SUFFIXES)}), "
            f"which this model takes; {came}."
        )
    rows = (
        Row(str(file.relative_to(path)) if path.is_dir() else file.name, file, None, number)
        for number, file in enumerate(files, start=1)
    )
    return Source(rows, len(files))


def _readable(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except OSError as error:
        raise UserError(f"{path} must be readable; reading it failed ({error}).") from None


def _csv(path: Path, column: str) -> Iterator[Row]:
    for row in read_table(path, {"--column": column}):
        yield Row(str(row.number), row.fields[0], row.problem, row.position)


def _jsonl(path: Path, column: str) -> Iterator[Row]:
    for number, line, position in json_lines(path):
        yield Row(str(number), *_field(line, column), position)


def json_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Number, content and end of each line that is not empty."""
    position = 0
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(stream), start=1):
            position += len(line)
            if line.strip():
                yield number, line, position


def _field(line: bytes, column: str) -> tuple[Any, str | None]:
    """The text in a line of JSON, and what is wrong with it."""
    if len(line) > tables.MAX_CHARACTERS:
        return "", f"it is longer than {tables.MAX_CHARACTERS} bytes"
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return "", f"it is not JSON ({error})"
    if not isinstance(value, dict) or column not in value:
        return "", f"it has no field {column}"
    return value[column], fault(column, value[column])


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines, of which one that is too long is only begun, and read over."""
    while line := stream.readline(tables.MAX_CHARACTERS + 1):
        yield line
        while len(line) > tables.MAX_CHARACTERS and not line.endswith(b"\n"):
            line = stream.readline(tables.MAX_CHARACTERS + 1)
            if not line:
                return
