"""Configurations, names and numbers that nobody means, through the whole command line."""

import io
import os
import sys
from pathlib import Path

import pytest
from commands import call

# a model of a moment's training may have every answer wrong
pytestmark = pytest.mark.filterwarnings("ignore::kepsvgp.metrics.inputs.UndefinedMetricWarning")

SMALL = (
    "data.train_limit=64", "data.val_limit=20", "data.test_limit=20", "data.corruptions=none",
    "model.depth=1", "model.dim=8", "model.num_heads=2", "model.mlp_dim=8", "model.kep.rank=2",
    "prediction.num_samples=2", "train.epochs=1", "train.batch_size=32",
)  # fmt: skip


@pytest.fixture
def say(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder; gives its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").touch()

    def run(*arguments: object) -> tuple[int, str, str]:
        return call(*arguments), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("x=" + "[" * 50_000, "x is no known key"),
        ("seed=" + "9" * 30, "seed"),
        ("seed=" + "9" * 5_000, "seed"),
        ("data.seed=-" + "9" * 30, "data.seed"),
        ("prediction.batch_size=" + "9" * 30, "prediction.batch_size"),
        ("model.kep.rank=" + "9" * 30, "model.kep.rank"),
        ("model.kep.posterior_scale=1e300", "model.kep.posterior_scale"),
        ("train.lr=inf", "train.lr"),
        ("train.clip_norm=nan", "train.clip_norm"),
        ("objective.ksvd_weight=inf", "objective.ksvd_weight"),
        ("data.root=\udcff", "UTF-8"),
        ("train.lrr=1", "train.lrr"),
        ("train.lr=fast", "train.lr"),
        ("train.device=cuda:7", "train.device"),
        ("model.patch_size=3", "patch_size"),
        ("model.num_heads=5", "model.dim"),
        ("data.name=cola", "cola"),
    ],
)
def test_wrong_value_is_one_message_and_writes_nothing(override, word, say, monkeypatch) -> None:
    monkeypatch.setenv("KEPSVGP_DATA", "nowhere")
    code, _, err = say("train", "c.toml", *SMALL, override, "--out", "run")

    assert code == 2
    assert err.startswith("error: ")
    assert word in err
    assert "Traceback" not in err
    assert [path.name for path in Path().iterdir()] == ["c.toml"]


@pytest.mark.parametrize("text", ["x = " + "[" * 50_000, "seed = 1" + "0" * 5_000])
def test_strange_configuration_is_one_message(text, say) -> None:
    Path("c.toml").write_text(text)
    code, _, err = say("train", "c.toml", "--out", "run")

    assert code == 2
    assert err.startswith("error: c.toml must hold valid TOML")


@pytest.mark.parametrize("values", [("csv", "path"), ("images", "path"), ("cifar10", "root")])
def test_home_of_nobody_is_one_message(values, say) -> None:
    name, key = values
    code, _, err = say("train", "c.toml", f"data.name={name}", f"data.{key}=~no-such-user/x")

    assert code == 2
    assert "~no-such-user/x must begin with the home of a user" in err


def test_model_beyond_the_memory_is_one_message(say) -> None:
    # 10¹⁸ weights, which no machine has room for
    size = 10**9
    code, _, err = say("train", "c.toml", *SMALL, f"model.dim={size}", "--out", "run")

    assert code == 2
    assert "error: the memory does not suffice" in err
    assert "Traceback" not in err


def test_folder_whose_name_commands_is_only_named(say) -> None:
    name = "[/red]\x1b[31m"
    code, out, err = say("train", "c.toml", *SMALL, "--out", name)

    assert code == 0, err
    assert "run folder: [/red]\\x1b[31m" in out
    assert "\x1b" not in out + err


def test_folder_whose_name_is_no_text_is_refused_before_training(say) -> None:
    code, _, err = say("train", "c.toml", *SMALL, "--out", "run\udcff")

    assert code == 2
    assert "error: run\\udcff must be a path in UTF-8" in err
    assert not os.path.exists(b"run\xff")  # noqa: PTH110 (its name is bytes)


def test_report_replaces_no_file_of_a_run(say) -> None:
    Path("config.toml").write_text("precious")
    code, _, err = say("report", ".", "--out", "config.toml")

    assert code == 2
    assert "--out must end in .html or .htm; got config.toml" in err
    assert Path("config.toml").read_text() == "precious"


def test_output_that_has_no_such_letters_writes_them_out(say, monkeypatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    code, _, err = say("train", "c.toml", *SMALL, "--out", "run…")
    sys.stdout.flush()

    assert code == 0, err
    assert b"run folder: run\\u2026" in written.getvalue()


def test_prediction_to_a_closed_output_is_one_message(monkeypatch) -> None:
    from kepsvgp.errors import UserError
    from kepsvgp.serving import stream

    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UserError, match="standard output must be open"), stream._writer(None):
        pass
