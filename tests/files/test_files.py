import os
import threading
import time
from pathlib import Path

import pytest

from kepsvgp import Abstainer
from kepsvgp.errors import UserError
from kepsvgp.files import PART, absolute, read_json, replacing, write_atomic


def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    for read in (lambda: read_json(tmp_path / "none.json"), lambda: Abstainer.load(tmp_path)):
        with pytest.raises(UserError, match="must exist; there is no such file") as refused:
            read()
        assert "damaged" not in str(refused.value)


def test_absolute_paths_are_the_same_from_every_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert absolute("../data") == absolute("~/data") == tmp_path / "data"


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private.csv"
    path.write_text("old")
    path.chmod(0o600)

    write_atomic(path, "new")

    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_permissions_of_any_and_the_mask_is_left_alone(
    tmp_path: Path, monkeypatch
) -> None:
    # who asks for the mask sets it, for the files of all threads
    monkeypatch.setattr(os, "umask", None)
    (tmp_path / "other").touch()

    write_atomic(tmp_path / "new", "content")

    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other"]


def test_a_link_goes_on_pointing_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)

    write_atomic(link, "new")

    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe.csv", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()

    write_atomic(pipe, "new")

    # who reads one that was replaced would wait for ever
    assert pipe.is_fifo()
    reader.join()
    assert read == ["new"]


def test_what_is_still_written_after_a_day_is_kept(tmp_path: Path) -> None:
    path, long_ago = tmp_path / "out.csv", time.time() - 100_000
    with replacing(path) as temporary:
        temporary.write_text("first")
        # a laptop that slept
        for each in (temporary, temporary.parent):
            os.utime(each, (long_ago, long_ago))
        write_atomic(path, "second")

    assert path.read_text() == "first"


def test_links_that_are_called_like_leftovers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / f".out.csv.x{PART}"
    link.symlink_to(tmp_path / "folder")
    os.utime(tmp_path / "folder", (0, 0))

    write_atomic(tmp_path / "out.csv", "new")

    assert link.is_symlink()
    assert (tmp_path / "folder").is_dir()
