import json
from pathlib import Path

import pytest
from commands import call

from kepsvgp.runs.folder import RunFolder


@pytest.fixture(scope="module")
def run(config, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert call("train", config, "train.epochs=1", "model.depth=2", "--out", path) == 0
    return path


def test_inspect_writes_what_the_report_reads(run, capsys) -> None:
    assert call("inspect", run, "--examples", 10) == 0

    shown = capsys.readouterr().out
    assert "blocks.1.attention (kep, 2 heads)" in shown
    assert "rank 3 explains" in shown
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
    assert found.allowed == pytest.approx(found.effective_dimension / (2 * 96))


def test_inspect_of_the_same_run_is_the_same(run, capsys) -> None:
    call("inspect", run, "--split", "val", "--checkpoint", "last")
    once = (run / "inspect.json").read_bytes()
    call("inspect", run, "--split", "val", "--checkpoint", "last")

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
def test_inspect_tells_a_user_s_mistake(run, arguments, told, capsys) -> None:
    folder = () if arguments[0] == "no-such-run" else (run,)

    assert call("inspect", *folder, *arguments) == 2

    assert told in capsys.readouterr().err
