import json
from pathlib import Path

import pytest

from kepsvgp.errors import UserError
from kepsvgp.serving import rows
from kepsvgp.serving.rows import open_images, open_texts


def read(path: Path, content: str | bytes, column: str = "text") -> list[rows.Row]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source = open_texts(path, column)
    found = list(source.rows)
    assert not found or found[-1].position <= source.size == path.stat().st_size
    return found


def test_csv_gives_texts_by_number(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", 'id,text\n1,one\n2,"two,\nlines"\n')

    assert [(row.name, row.content) for row in found] == [("1", "one"), ("2", "two,\nlines")]


def test_tsv_and_another_column(tmp_path: Path) -> None:
    found = read(tmp_path / "a.TSV", '\ufeffbody\tid\nsay "so", he said\t1\n', column="body")

    assert [row.content for row in found] == ['say "so", he said']


def test_jsonl_gives_texts_and_passes_over_empty_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "zwölf", "x": 1}')

    assert [(row.name, row.content) for row in found] == [("1", "one"), ("3", "zwölf")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "no text"),
        (b" \t", "no text"),
        (b"one,two,three", "more fields"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_broken_csv_row_is_told_and_the_next_one_read(
    line: bytes, problem: str, tmp_path: Path
) -> None:
    found = read(tmp_path / "a.csv", b"text,id\n" + line + b",1\nfine,2\n")

    assert problem in str(found[0].problem)
    assert (found[1].content, found[1].problem) == ("fine", None)


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
    found = open_texts(tmp_path / name, "text").rows

    assert next(found).content == "fine"
    with pytest.raises(UserError, match=r"after row 1 \(line 2\) .* as a whole, .* doubled"):
        next(found)


def test_quotation_marks_in_a_text_are_read(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", 'text\n"say ""so""\n\t, he said"\nit is "so"\n')

    assert [row.content for row in found] == ['say "so"\n\t, he said', 'it is "so"']


def test_nul_in_csv_is_only_a_strange_letter(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", "text\na\0b\n")[0].content == "a\ufffdb"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"9" * 5_000, "not JSON"),
        (b'["text"]', "no field text"),
        (b'{"body": "x"}', "no field text"),
        (b'{"text": 3}', "no text"),
        (b'{"text": null}', "no text"),
        (b'{"text": "\\ud800"}', "not UTF-8"),
    ],
)
def test_broken_json_row_is_told_and_the_next_one_read(
    line: bytes, problem: str, tmp_path: Path
) -> None:
    found = read(tmp_path / "a.jsonl", line + b'\n{"text": "fine"}\n')

    assert problem in str(found[0].problem)
    assert (found[1].content, found[1].problem) == ("fine", None)


def test_endless_line_is_not_read_into_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "MAX_CHARACTERS", 100)
    long = json.dumps({"text": "x" * 1000})

    found = read(tmp_path / "a.jsonl", f'{long}\n{{"text": "fine"}}\n')
    assert ["longer than 100" in str(row.problem) for row in found] == [True, False]
    assert [row.name for row in found] == ["1", "2"]

    with pytest.raises(UserError, match=r"after row 1 .* quotation mark"):
        read(tmp_path / "a.csv", "text\nfine\n" + '"' + "x\n" * 1000)
    with pytest.raises(UserError, match=r"after row 0 .* longer than 100"):
        read(tmp_path / "b.csv", "text\n" + "x" * 1000)


@pytest.mark.parametrize("content", ["", "\n\n", "body\nx\n", "\0\0\0\0"])
def test_csv_without_the_column_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the column text; it has: .*--column"):
        read(tmp_path / "a.csv", content)


def test_text_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.docx").touch()
    for path in (tmp_path / "a.docx", tmp_path / "none.csv", tmp_path):
        with pytest.raises(UserError, match="must be a file of texts"):
            open_texts(path, "text")


def test_images_are_found_in_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.png", "a/c.JPG", "a/notes.txt", ".hidden.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    source = open_images(tmp_path)

    assert [(row.name, row.position) for row in source.rows] == [("a/c.JPG", 1), ("b.png", 2)]
    assert source.size == 2
    assert [row.name for row in open_images(tmp_path / "b.png").rows] == ["b.png"]


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has none"):
        open_images(tmp_path)
    with pytest.raises(UserError, match="no such path"):
        open_images(tmp_path / "elsewhere")
