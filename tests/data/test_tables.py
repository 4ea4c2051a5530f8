import csv
import io
from pathlib import Path

import pytest

from kepsvgp.data import tables
from kepsvgp.data.tables import csv_cell, read_table
from kepsvgp.errors import UserError


def read(path: Path, content: str | bytes, column: str = "text") -> list[tables.TableRow]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_table(path, {"--column": column}))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", 'id,text\n1,one\n2,"two,\nlines"\n', ["one", "two,\nlines"]),
        ("a.TSV", '\ufefftext\tid\nsay "so", he said\t1\n', ['say "so", he said']),
        ("a.tsv", 'text\n"a ""b""\n\t, c"\nit is "so"\n', ['a "b"\n\t, c', 'it is "so"']),
        ("a.csv", "text\na\0b\n", ["a\ufffdb"]),
        ("a.csv", "id,text\n\n1,one\n\n", ["one"]),
    ],
)
def test_fields_are_read(name: str, content: str, expected: list[str], tmp_path: Path) -> None:
    assert [row.fields[0] for row in read(tmp_path / name, content)] == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "no text"),
        (b" \t", "no text"),
        (b"one,two,three", "more fields"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_broken_row_is_told_and_the_next_one_read(line, problem, tmp_path: Path) -> None:
    first, second = read(tmp_path / "a.csv", b"text,id\n" + line + b",1\nfine,2\n")

    assert problem in str(first.problem)
    assert (second.fields, second.problem) == (("fine",), None)
    assert (second.number, second.line) == (2, 3)
    assert second.position == (tmp_path / "a.csv").stat().st_size


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,text\n1,fine\n2,"he said\n3,third\n4,fourth\n'),
        ("b.csv", 'id,text\n1,fine\n2,"he said\n3,third\n4,"fourth"\n'),
        ("c.csv", 'text\nfine\n"he said\nthird\n'),
        ("d.tsv", 'id\ttext\n1\tfine\n2\t"so" he said\n3\tthird\n'),
    ],
)
def test_open_quotation_mark_swallows_no_rows(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    found = read_table(tmp_path / name, {"--column": "text"})

    assert next(found).fields == ("fine",)
    with pytest.raises(UserError, match=r"after row 1 \(line 2\) .* as a whole, .* doubled"):
        next(found)


def test_endless_line_is_not_read_into_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 100)

    with pytest.raises(UserError, match=r"after row 1 .* quotation mark"):
        read(tmp_path / "a.csv", "text\nfine\n" + '"' + "x\n" * 1000)
    with pytest.raises(UserError, match=r"after row 0 .* longer than 100"):
        read(tmp_path / "b.csv", "text\n" + "x" * 1000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "are: nothing. Name another one with --column") for content in ("", "\n\n")),
        ("body,texts\nx,y\n", "are: body, texts. Did you mean texts. Name"),
        ("\0\0\0\0", "the column text"),
        ("text,label,text\na,1,b\n", "more than one of that name"),
    ],
)
def test_table_without_the_column_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.csv", content)


@pytest.mark.parametrize("sign", "=+-@＝＋－＠﹦﹢﹣﹫")
@pytest.mark.parametrize("before", ["", " ", "\t", "\r", "a;", "a; ", "a\t", "a|"])
def test_no_cell_begins_like_a_formula(before: str, sign: str) -> None:
    """Wherever a spreadsheet may divide the line."""
    text = f"{before}{sign}SUM(A1)"
    row = io.StringIO()
    csv.writer(row).writerow([csv_cell(text)])

    (cell,) = next(csv.reader(io.StringIO(row.getvalue())))

    assert cell[0] not in "\t\r\n"
    assert f"'{sign}" in "".join(cell.split())
    assert cell.replace("'", "") == text.replace("\r", "\n")


@pytest.mark.parametrize("delimiter", ",;|\t")
@pytest.mark.parametrize("text", ["a\n=1+1;b", 'a;"=1+1;b', '"=1+1', 'a\n" =1+1', "a\r\n+A1|b"])
def test_no_cell_is_a_formula_however_rows_are_divided(text: str, delimiter: str) -> None:
    row = io.StringIO()
    csv.writer(row).writerows([[1, csv_cell(text), 2], [csv_cell(text)]])

    rows = csv.reader(io.StringIO(row.getvalue()), delimiter=delimiter)

    assert not [cell for cells in rows for cell in cells if cell.lstrip().startswith(("=", "+"))]


@pytest.mark.parametrize("text", ["-1.5", "+3", "a=b", "", "a;b", "a; -1.5", "a\n-2", "漢字|käse"])
def test_other_cells_stay(text: str) -> None:
    assert csv_cell(text) == text
