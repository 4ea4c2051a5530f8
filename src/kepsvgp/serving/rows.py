"""New inputs one after another, from files of any length, with what is wrong in their place."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kepsvgp.data import pictures
from kepsvgp.data.sets import table
from kepsvgp.errors import UserError

# longer rows are taken for damage: an unclosed quote, or a file of something else
MAX_CHARACTERS = 2**24
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
    csv.field_size_limit(MAX_CHARACTERS)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # undecodable bytes come through as they are, and are a fault of their row alone
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        position = 0

        def lines() -> Iterator[str]:
            nonlocal position
            while line := stream.readline(MAX_CHARACTERS + 1):
                if len(line) > MAX_CHARACTERS:
                    raise csv.Error(f"line longer than {MAX_CHARACTERS} characters")
                position += len(line.encode(errors="surrogateescape"))
                # the csv module has no notion of NUL
                yield line.replace("\0", "\ufffd")

        # otherwise a quotation mark that is not closed would swallow the rows behind it
        rows = csv.DictReader(lines(), delimiter=delimiter, strict=True)
        number = 0
        try:
            if column not in (rows.fieldnames or ()):
                names = ", ".join(rows.fieldnames or ()) or "nothing"
                raise UserError(
                    f"{path} must have a first line with the column {column}; it has: "
                    f"{names[:200]}. Name another one with --column."
                )
            if (rows.fieldnames or ()).count(column) > 1:
                raise UserError(
                    f"{path} must have one column {column}; it has more than one of that name."
                )
            for number, row in enumerate(rows, start=1):
                problem = "it has more fields than the first line" if None in row else None
                yield _text_row(number, row[column], problem, position)
        except csv.Error as error:
            raise UserError(
                f"{path} must be CSV or TSV; after row {number} (line {rows.line_num}) it cannot "
                f"be read any further ({error}). {table.QUOTES}"
            ) from None


def _jsonl(path: Path, column: str) -> Iterator[Row]:
    position = 0
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(stream), start=1):
            position += len(line)
            if len(line) > MAX_CHARACTERS:
                yield Row(str(number), "", f"it is longer than {MAX_CHARACTERS} bytes", position)
                continue
            if not line.strip():
                continue
            try:
                value: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Row(str(number), "", f"it is not JSON ({error})", position)
                continue
            if not isinstance(value, dict) or column not in value:
                yield Row(str(number), "", f"it has no field {column}", position)
                continue
            yield _text_row(number, value[column], None, position)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines, of which one that is too long is only begun, and read over."""
    while line := stream.readline(MAX_CHARACTERS + 1):
        yield line
        while len(line) > MAX_CHARACTERS and not line.endswith(b"\n"):
            line = stream.readline(MAX_CHARACTERS + 1)
            if not line:
                return


def _text_row(number: int, content: Any, problem: str | None, position: int) -> Row:
    if problem is None and (not isinstance(content, str) or not content.strip()):
        problem = "it has no text"
    elif problem is None and any("\ud800" <= character <= "\udfff" for character in content):
        problem = "its text is not UTF-8"
    return Row(str(number), content if problem is None else "", problem, position)
