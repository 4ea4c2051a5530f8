"""The examples run, on a few real examples each."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kepsvgp import Prediction
from kepsvgp.config.file import dump_config, load_config
from kepsvgp.data import load_benchmark
from kepsvgp.files import read_json, write_atomic
from kepsvgp.metrics import all_metrics
from kepsvgp.runs.folder import RunFolder

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.realdata
def test_minilm_answers_by_every_arm_once(data_root, tmp_path, monkeypatch, capsys) -> None:
    arms = ["softmax", "validation", "laplace", "fine-tuned"]
    arguments = ["--out", str(tmp_path), "--seeds", "0", "--epochs", "1", "--limit", "40"]
    monkeypatch.setattr(sys, "argv", ["minilm.py", *arguments, "--arms", *arms])
    script = str(EXAMPLES / "minilm.py")

    runpy.run_path(script, run_name="__main__")

    out = capsys.readouterr().out
    assert all(f"  {arm}: accuracy" in out for arm in arms)
    softmax, after = (
        Prediction.load(tmp_path / f"0-{arm}-test.safetensors") for arm in ("softmax", "validation")
    )
    # a posterior never moves the answers
    assert torch.equal(softmax.predicted, after.predicted)
    assert after.novelty is not None
    # what is finished is not computed again
    runpy.run_path(script, run_name="__main__")
    assert capsys.readouterr().out == "seed 0\n"


def test_cross_validation_pools_the_folds_of_every_arm(tmp_path, monkeypatch, capsys) -> None:
    script = str(EXAMPLES / "cross_validation.py")
    limits = ["data.train_limit=80", "data.val_limit=40", "train.epochs=2", "model.depth=1"]
    settings = load_config("digits-small", limits)
    write_atomic(tmp_path / "short.toml", dump_config(settings))
    arms = ["softmax: msp train.lr=0.01", "both: ensemble train.lr=0.01", "KEP: kep", "one: kep"]
    arms[-1] += " seeds=1"
    command = ["cross_validation.py", str(tmp_path / "short.toml"), "--out", str(tmp_path)]
    command += [part for arm in arms for part in ("--arm", arm)]
    command += ["--folds", "2", "--seeds", "2"]
    for only in (["--only", "1"], []):
        monkeypatch.setattr(sys, "argv", [*command, *only])
        runpy.run_path(script, run_name="__main__")

    table = capsys.readouterr().out
    assert "| KEP − softmax |" in table
    found = read_json(tmp_path / "folds.json")
    assert [arm["seeds"] for arm in found["arms"]] == [2, 2, 2, 1]
    digits = load_benchmark(settings.data)
    assert sum(found["folds"].values()) == len(digits.train)
    # the folds by hand: disjoint, all of the training set, and no model saw its own
    runs = [RunFolder(path) for path in sorted(tmp_path.glob("kep-*-seed1"))]
    saved = [Prediction.load(run.predictions_file("nll", "kep", "test")) for run in runs]
    assert sum(map(len, saved)) == len(digits.train)
    parts = zip(saved, digits.train.labels.split(40), strict=True)
    by_hand = [all_metrics(each.probs, labels) for each, labels in parts]
    for name, values in found["rules"]["nll"]["results"]["KEP"].items():
        assert values[1] == pytest.approx(sum(each[name] for each in by_hand) / 2)
    sizes = [run.record()["splits"]["sizes"] for run in runs]
    assert all(each["train"] + each["test"] == len(digits.train) for each in sizes)
    assert {each["val"] for each in sizes} == {len(digits.val)}
    # an ensemble is one model, and its difference that of the means
    last = found["rules"]["last"]
    one, two = last["results"]["softmax"]["brier"]
    (both,) = last["results"]["both"]["brier"]
    difference = last["differences"]["both − softmax"]["brier"]
    assert difference["difference"] == pytest.approx(both - (one + two) / 2)
    assert difference["low"] < difference["difference"] < difference["high"]
    assert last["results"]["one"]["nll"] == last["results"]["KEP"]["nll"][:1]
    assert sum(last["predicted"]["both"]) == pytest.approx(1)
    assert found["labels"] == pytest.approx((digits.train.labels.bincount() / 80).tolist())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--arm", "softmax"], "must be 'NAME: METHOD KEY=VALUE …'"),
        (["--arm", "softmax: mpp"], "a method must be one of"),
        (["--arm", "softmax: msp model.depht=3"], "depht"),
        (["--arm", "softmax: msp seed=3"], "must share their data, method, seed"),
        (["--arm", "softmax: msp data.seed=3"], "must share their data, method, seed"),
        (["--arm", "all: ensemble"], "all must have 2 seeds or more"),
        (
            ["--arm", "softmax: msp seeds=abc"],
            "seeds= must be a whole number; softmax has seeds=abc",
        ),
        (["--arm", "softmax: msp seeds=0"], "softmax must have 1 seeds or more"),
        (["--arm", "one: msp", "--arm", "one: kep"], "names of their own"),
        (["--arm", "one: msp", "--against", "two"], "must be among them"),
        (["--arm", "one: msp", "--only", "5"], "--only below it; got 5"),
    ],
)
def test_cross_validation_refuses_before_it_trains(arguments, told, tmp_path, monkeypatch) -> None:
    command = ["cross_validation.py", "digits-small", "--out", str(tmp_path), *arguments]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=re.escape(told)):
        runpy.run_path(str(EXAMPLES / "cross_validation.py"), run_name="__main__")
    assert not list(tmp_path.iterdir())


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
