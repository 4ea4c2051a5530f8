from pathlib import Path

import pytest
from commands import SMALL, call
from datafiles import write_images, write_vocabulary

from kepsvgp.runs.folder import RunFolder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a configuration that names them from there."""
    write_images(tmp_path / "pictures", {"cat": 16, "dog": 16})
    own = '[data]\nname = "images"\npath = "pictures"\nroot = "cache"\nimage_size = 8\n'
    (tmp_path / "own.toml").write_text(SMALL.read_text().replace("[data]\n", own))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_finds_its_own_data_from_another_folder(project, monkeypatch, capsys) -> None:
    assert call("train", "own.toml", "train.epochs=1", "--out", "runs/one") == 0
    data = RunFolder(project / "runs" / "one").config().data
    assert data.path == project / "pictures"
    assert data.root == project / "cache"

    monkeypatch.chdir(project / "elsewhere")

    assert call("evaluate", "../runs/one", "--splits", "test") == 0
    assert call("train", "../own.toml", "train.epochs=1", "--out", "../runs/two") == 2
    assert f"there is nothing at {project}/elsewhere/pictures" in capsys.readouterr().err


def test_a_run_with_a_relative_path_is_resumed(project) -> None:
    assert call("train", "own.toml", "train.epochs=1", "--out", "runs/one") == 0

    arguments = ("own.toml", "train.epochs=1", "--out", "runs/one", "--resume")
    assert call("train", *arguments) == 0
    # the same place by another name
    assert call("train", *arguments, f"data.path={project}/pictures") == 0
    (project / "pictures").rename(project / "others")
    assert call("train", *arguments, "data.path=others") == 2


@pytest.mark.filterwarnings("ignore::kepsvgp.metrics.inputs.UndefinedMetricWarning")
def test_columns_of_a_table_are_named_by_flags(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("tokenizers")
    lines = [f"{'the cat' if i % 2 else 'a dog'} {i},{i % 2}" for i in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["2024,mark", *lines]))
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", "the cat a dog")
    own = f'[data]\nname = "csv"\npath = "own.csv"\nroot = "cache"\nvocabulary = "{vocabulary}"\n'
    (tmp_path / "own.toml").write_text(SMALL.read_text().replace("[data]\n", own))
    monkeypatch.chdir(tmp_path)
    arguments = ("train", "own.toml", "train.epochs=1", "--out", "run", "--text-column", "2024")

    assert call(*arguments, "--label-column", "marks") == 2
    assert "its columns are: 2024, mark. Did you mean mark?" in capsys.readouterr().err
    assert call(*arguments, "--label-column", "mark") == 0
    assert call("evaluate", "run") == 0
    assert call("evaluate", "run", "--splits", "ood") == 2
    assert "has no 'ood'" in capsys.readouterr().err
