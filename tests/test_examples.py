"""The examples run, on a few real examples each."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kepsvgp.files import read_json

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.realdata
def test_minilm_on_cola_runs_both_arms_once(data_root, tmp_path, monkeypatch, capsys) -> None:
    arguments = ["--out", str(tmp_path), "--seeds", "1", "--epochs", "1", "--limit", "40"]
    monkeypatch.setattr(sys, "argv", ["minilm_cola.py", *arguments])
    script = str(EXAMPLES / "minilm_cola.py")

    runpy.run_path(script, run_name="__main__")

    first = capsys.readouterr().out
    for arm in ("softmax", "kep"):
        record = read_json(tmp_path / f"{arm}-0.json")
        assert record["metrics"].keys() == {"val", "test"}
        assert record["metrics"]["test"]["nll"] > 0
    assert first.count("epoch 1") == 2
    # what is finished is not computed again, and the table is the same
    runpy.run_path(script, run_name="__main__")
    second = capsys.readouterr().out
    assert "epoch 1" not in second
    assert second.strip() == first[first.index("| test |") :].strip()
    assert "| kep − softmax |" in second


def losses_of(processes: int) -> list[float]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [
            sys.executable,
            *launcher,
            EXAMPLES / "long_sequence.py",
            "--tokens",
            "65",
            "--steps",
            "3",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [float(value) for value in re.findall(r"loss (\S+)", done.stdout)]


@pytest.mark.slow
def test_long_sequence_has_the_same_losses_on_two_processes() -> None:
    alone = losses_of(1)
    assert len(alone) == 3
    assert losses_of(2) == pytest.approx(alone, rel=1e-4)
