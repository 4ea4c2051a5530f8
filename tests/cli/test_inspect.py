import json
import sys
from pathlib import Path

import pytest

from kepsvgp.cli import main
from kepsvgp.config.file import parse_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import load_benchmark
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import train


def config() -> RunConfig:
    return parse_config(
        {
            "method": "kep",
            "data": {"train_limit": 64, "val_limit": 20, "test_limit": 20},
            "model": {"depth": 2, "dim": 12, "num_heads": 2, "mlp_dim": 12, "patch_size": 2},
            "train": {"epochs": 1, "batch_size": 32},
            "prediction": {"num_samples": 2},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    return train(config(), load_benchmark(config().data), path).path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kepsvgp", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_inspect_writes_what_the_report_reads(run, monkeypatch, capsys) -> None:
    assert call(monkeypatch, "inspect", run, "--examples", 10) == 0

    shown = capsys.readouterr().out
    assert "blocks.1.attention (kep, 2 heads)" in shown
    assert "rank 10 explains" in shown
    assert "head 2: KL" in shown
    content = json.loads((run / "inspect.json").read_text())
    assert content["examples"] == 10
    spectra = RunFolder(run).inspection()
    assert spectra is not None
    assert [layer.kind for layer in spectra.layers] == ["softmax", "kep"]
    assert spectra.layers[1].findings == content["layers"][1]["findings"]
    # one epoch of two steps: whatever it is, the words say the same as the numbers
    found = spectra.layers[1].activity
    assert found is not None
    assert (found.word == "silent") == (found.effective_dimension < 1)
    assert f"  {found.word}: " in shown
    assert found.allowed == pytest.approx(found.effective_dimension / (2 * 64))


def test_inspect_of_the_same_run_is_the_same(run, monkeypatch, capsys) -> None:
    call(monkeypatch, "inspect", run, "--split", "val", "--checkpoint", "last")
    once = (run / "inspect.json").read_bytes()
    call(monkeypatch, "inspect", run, "--split", "val", "--checkpoint", "last")

    assert (run / "inspect.json").read_bytes() == once
    assert json.loads(once)["split"] == "val"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("no-such-run",), "must be a run folder"),
        (("--checkpoint", "best"), "checkpoint"),
        (("--split", "all"), "split"),
    ],
)
def test_inspect_tells_a_user_s_mistake(run, arguments, told, monkeypatch, capsys) -> None:
    folder = () if arguments[0] == "no-such-run" else (run,)

    assert call(monkeypatch, "inspect", *folder, *arguments) == 2

    assert told in capsys.readouterr().err
