import json
from pathlib import Path

import pytest

from kepsvgp.data import tables
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
    found = read(tmp_path / "a.csv", 'id,text\n1,one\n,\n2,"two,\nlines"\n')

    assert [(row.name, row.content) for row in found if row.problem is None] == [
        ("1", "one"),
        ("3", "two,\nlines"),
    ]
    assert "no text" in str(found[1].problem)


def test_jsonl_gives_texts_and_passes_over_empty_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "zwölf", "x": 1}')

    assert [(row.name, row.content) for row in found] == [("1", "one"), ("3", "zwölf")]


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
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 100)
    long = json.dumps({"text": "x" * 1000})

    found = read(tmp_path / "a.jsonl", f'{long}\n{{"text": "fine"}}\n')
    assert ["longer than 100" in str(row.problem) for row in found] == [True, False]
    assert [row.name for row in found] == ["1", "2"]


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
