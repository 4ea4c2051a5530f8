from pathlib import Path

import pytest

from kepsvgp import Abstainer
from kepsvgp.errors import UserError
from kepsvgp.files import absolute, read_json, write_atomic


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


def test_a_link_goes_on_pointing_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)

    write_atomic(link, "new")

    assert link.is_symlink()
    assert real.read_text() == "new"
