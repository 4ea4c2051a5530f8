import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import call
from PIL import Image

from kepsvgp.runs.folder import RunFolder
from kepsvgp.training import loop as training


@pytest.fixture(scope="module")
def stopped(config, tmp_path_factory) -> Path:
    """A run of two epochs that was interrupted after the first."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    finish = training._finish_epoch

    def stop(*arguments) -> None:
        finish(*arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_finish_epoch", stop)
        assert call("train", config, "--out", run) == 130
    return run


def test_commands_say_that_a_run_was_interrupted(stopped, tmp_path, capsys) -> None:
    image = tmp_path / "images" / "one.png"
    image.parent.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)

    for arguments in (
        ("evaluate", stopped, "--splits", "test"),
        ("predict", stopped, image.parent),
        ("inspect", stopped, "--examples", 4),
        ("report", stopped, "--out", tmp_path / "page.html"),
    ):
        assert call(*arguments) == 0
        told = capsys.readouterr().err
        assert f"{stopped} stopped after 1 of 2 epochs; continue with `kepsvgp train" in told

    page = (tmp_path / "page.html").read_text()
    assert "The training of run stopped after 1 of 2 epochs." in page


def test_the_command_that_is_named_finishes_the_run(stopped, tmp_path, capsys) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    call("evaluate", run, "--splits", "test")
    command = capsys.readouterr().err.split("`")[1]

    assert call(*shlex.split(command)[1:]) == 0

    assert RunFolder(run).unfinished() is None
    capsys.readouterr()
    assert call("evaluate", run, "--splits", "test") == 0
    assert "stopped" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_a_run_whose_history_cannot_be_read_is_evaluated_without_a_word(
    stopped, tmp_path, capsys, content
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    history = run / "history.jsonl"
    history.unlink()
    if content is not None:
        history.write_bytes(content)

    assert call("evaluate", run, "--splits", "test") == 0
    assert "stopped" not in capsys.readouterr().err
