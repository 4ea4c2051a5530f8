import itertools
import multiprocessing
import shutil
from pathlib import Path

import pytest

from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder, write_atomic


class Crash(BaseException):
    """The process dies here."""


def test_files_are_plain_and_come_back(tmp_path: Path) -> None:
    folder = CheckedFolder(tmp_path)
    folder.write_json("deep/value.json", {"a": [1, 2.5]})
    folder.write_json_lines("lines.jsonl", [{"a": 1}, {"b": 2}])
    part = CheckedFolder(tmp_path, "deep")

    assert part.read_json("value.json") == folder.read_json("deep/value.json") == {"a": [1, 2.5]}
    assert folder.read_json_lines("lines.jsonl") == [{"a": 1}, {"b": 2}]
    assert (tmp_path / "lines.jsonl").read_text() == '{"a": 1}\n{"b": 2}\n'
    folder.forget("deep")
    assert not part.has("value.json")
    assert folder.has("lines.jsonl")


def test_what_is_not_listed_is_refused_by_name(tmp_path: Path) -> None:
    one, other = CheckedFolder(tmp_path / "one"), CheckedFolder(tmp_path / "other")
    for folder in (one, other):
        folder.write_text("a.txt", str(folder.path))
        folder.write_text("b.txt", "b")
    shutil.copy(other.path / "a.txt", one.path / "a.txt")
    write_atomic(other.path / "c.txt", "never listed")
    (other.path / "b.txt").unlink()

    for folder, name in ((one, "a.txt"), (other, "b.txt"), (other, "c.txt")):
        with pytest.raises(UserError, match=name):
            folder.read_text(name)
    for folder in (one, other):
        with pytest.raises(UserError):
            folder.check_all()
    assert one.read_text("b.txt") == "b"


def test_a_crash_at_any_moment_leaves_the_old_file_or_the_new(tmp_path, monkeypatch) -> None:
    replace = Path.replace
    for number in itertools.count(1):
        folder = CheckedFolder(tmp_path / str(number))
        folder.write_text("a.txt", "old")
        calls = itertools.count(1)

        def dying(path: Path, target: Path, number=number, calls=calls) -> Path:
            if next(calls) == number:
                raise Crash
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying)
            try:
                folder.write_text("a.txt", "new")
            except Crash:
                assert folder.read_text("a.txt") in ("old", "new")
            else:
                break
        folder.write_text("a.txt", "newer")
        assert folder.read_text("a.txt") == "newer"
        # what it held before is no longer its content
        (folder.path / "a.txt").write_text("old")
        with pytest.raises(UserError):
            folder.read_text("a.txt")
    assert number == 4


def _write_many(root: Path, name: str) -> None:
    folder = CheckedFolder(root)
    for number in range(20):
        folder.write_text(f"{name}/{number}.txt", name)
        folder.write_text(f"{name}.txt", str(number))
        folder.read_text(f"{name}.txt")


def test_processes_write_to_one_folder_and_lose_nothing(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(tmp_path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0, 0]
    folder = CheckedFolder(tmp_path)
    folder.check_all()
    for name in names:
        assert folder.read_text(f"{name}.txt") == "19"
        assert all(folder.read_text(f"{name}/{number}.txt") == name for number in range(20))
