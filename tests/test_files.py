from pathlib import Path

import pytest

from kepsvgp import Abstainer
from kepsvgp.errors import UserError
from kepsvgp.files import absolute, read_json


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
