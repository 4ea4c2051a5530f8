"""CSV and TSV files: read row by row, whatever is in them, and written so that they only show."""

import csv
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from kepsvgp.errors import UserError, near_miss

# longer rows are taken for damage: an unclosed quote, or a file of something else
MAX_CHARACTERS = 2**24
_QUOTES = (
    "A text that begins with a quotation mark must stand in quotation marks as a whole, with "
    "those in it doubled."
)


class TableRow(NamedTuple):
    """The fields of a row that were asked for, or what is wrong with it.

    Attributes:
        number: Counted from 1 below the first line.
        line: Where in the file it ends.
        position: The same in bytes.
    """

    number: int
    line: int
    position: int
    fields: tuple[str, ...]
    problem: str | None


def read_header(path: Path) -> list[str]:
    """The names of the columns, from the first line; empty where it cannot be read."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        return next(csv.reader([stream.readline(MAX_CHARACTERS)], delimiter=delimiter), [])


def read_table(path: Path, columns: Mapping[str, str]) -> Iterator[TableRow]:
    """The rows of a file whose first line names its columns; broken ones say so.

    Args:
        path: A file with commas, or with tabs if its name ends in `.tsv`.
        columns: Names of the wanted columns, by the flag with which another one is named.
    """
    csv.field_size_limit(MAX_CHARACTERS)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # undecodable bytes come through as they are, and are a fault of their row alone
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        lines = _Lines(stream)
        # otherwise a quotation mark that is not closed would swallow the rows behind it
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        number = line = 0
        try:
            header = next(rows, [])
            line = rows.line_num
            places = [_place(path, header, *column) for column in columns.items()]
            for number, row in enumerate(filter(None, rows), start=1):
                fields = tuple(row[at] if at < len(row) else "" for at in places)
                faults = filter(None, map(fault, columns.values(), fields))
                problem = "it has more fields than the first line. Put texts with a comma in quotes"
                problem = problem if len(row) > len(header) else next(faults, None)
                line = rows.line_num
                yield TableRow(number, line, lines.position, fields, problem)
        except csv.Error as error:
            raise UserError(
                f"{path} must be CSV or TSV; after row {number} (line {line}) it cannot "
                f"be read any further ({error}). {_QUOTES}"
            ) from None


class _Lines:
    """The lines of a file, none without an end, and how many bytes they were."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.position = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._stream.readline(MAX_CHARACTERS + 1):
            if len(line) > MAX_CHARACTERS:
                raise csv.Error(f"line longer than {MAX_CHARACTERS} characters")
            self.position += len(line.encode(errors="surrogateescape"))
            # the csv module has no notion of NUL
            yield line.replace("\0", "\ufffd")


def _place(path: Path, header: Sequence[str], flag: str, name: str) -> int:
    if header.count(name) == 1:
        return header.index(name)
    if name in header:
        raise UserError(f"{path} must have one column {name}; it has more than one of that name.")
    found = ", ".join(header)[:200] or "nothing"
    raise UserError(
        f"{path} must have a first line with the column {name}; its columns are: {found}."
        f"{near_miss(name, header)} Name another one with {flag}."
    )


def fault(name: str, content: object) -> str | None:
    """What is wrong with a field of this name that should hold text."""
    if not isinstance(content, str) or not content.strip():
        return f"it has no {name}"
    try:
        content.encode()
    except UnicodeEncodeError:
        return f"its {name} is not UTF-8"
    return None


def csv_cell(text: str) -> str:
    """Text for a CSV file that no spreadsheet takes for a formula; numbers stay numbers.

    Some spreadsheets divide cells at semicolons, bars, tabs and line breaks, and take away the
    quotation marks that a cell begins with then. Line breaks become those of the file: the csv
    module quotes these, and others end the row.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    guarded = "".join(map(_guarded, re.split(r"([;|\t\n])", text)))
    return f"'{guarded}" if guarded.startswith(("\t", "\n")) else guarded


def _guarded(piece: str) -> str:
    # full-width and small signs count as the plain ones do
    shown = unicodedata.normalize("NFKC", piece.lstrip('"')).lstrip()
    if not shown.startswith(("=", "+", "-", "@")):
        return piece
    try:
        float(piece)
    except ValueError:
        return f"'{piece}"
    return piece
