import sys
from typing import Any

import pytest
import torch
from commands import call
from torch.testing import assert_close

from kepsvgp.data import batches
from kepsvgp.inference.prediction import Prediction, predict_batches
from kepsvgp.runs.folder import RunFolder
from kepsvgp.serving.saved import open_folder


def test_methods_are_fitted_and_measured_on_top_of_a_run(trained, capsys) -> None:
    run = RunFolder(trained)

    for method in ("temperature", "kfllla", "kep+mc_dropout"):
        assert call("evaluate", trained, "--method", method, "--splits", "test") == 0
        name = f"kep+{method.removeprefix('kep+')}"
        assert name in capsys.readouterr().out
        assert run.metrics()["score"][name].keys() == {"test"}
        first = Prediction.load(run.predictions_file("score", name, "test"))
        # once more, from what was saved
        assert call("evaluate", trained, "--method", method, "--splits", "test") == 0
        again = Prediction.load(run.predictions_file("score", name, "test"))
        assert first.probs.equal(again.probs)


def test_refit_gives_a_run_another_spread_and_the_same_mean(config, tmp_path, capsys) -> None:
    out = tmp_path / "run"
    changes = "train.epochs=1", "model.kep.refit=false"
    assert call("train", config, *changes, "--out", out) == 0
    run = RunFolder(out)
    before = run.weights()

    assert call("refit", out) == 0

    after = run.weights()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    # and what is familiar, which other draws change
    spread = {name for name in changed if ".novelty." not in name}
    assert {name.rpartition(".")[2] for name in spread} == {"v_tril_raw"}
    measured = run.metrics()["score"]
    assert measured["kep"].keys() == measured["kep+refitted"].keys() == {"val", "test"}
    # what serves new inputs is what was measured
    known = run.prediction("score", "kep+refitted", "val")
    count = run.config().prediction.num_samples
    served: Any = open_folder(out, num_samples=count, seed=run.config().seed)
    assert torch.equal(served.calibrate().probs, known.probs)
    found = predict_batches(run.model(), batches(run.benchmark().val, 16), num_samples=count)
    assert_close(found.probs, known.probs)

    msp = tmp_path / "msp"
    assert call("train", config, "train.epochs=1", "method=msp", "--out", msp) == 0
    assert call("refit", msp) == 2
    assert "KEP layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "platt"), "a method must be one of msp, kep"),
        (("--method", "sgpa+temperature"), "must be asked of a run of 'sgpa'"),
        (("RUN", "--method", "temperature"), "must have one run; got 2"),
        (("--method", "ensemble"), "at least two members"),
        (("--splits", "rain"), "has no 'rain'"),
        (("--checkpoint", "best"), "must be one of last, score, nll; got 'best'"),
    ],
)
def test_evaluate_refuses_what_it_cannot_mean(trained, capsys, arguments, message) -> None:
    given = (trained if word == "RUN" else word for word in arguments)

    assert call("evaluate", trained, *given) == 2
    assert message in capsys.readouterr().err


def test_compare_prints_one_table(config, tmp_path, capsys) -> None:
    out = tmp_path / "comparison"
    methods = "msp,ensemble,kep,kep+temperature"

    arguments = ("--methods", methods, "--seeds", 2, "--out", out, "--splits", "test,ood")
    assert call("compare", config, "train.epochs=1", *arguments) == 0

    lines = capsys.readouterr().out.splitlines()
    for title in ("MSP", "Deep ensemble", "KEP-SVGP + Temperature scaling"):
        # once for the test set, once for the photographs
        assert sum(line.startswith(f"{title} ") for line in lines) == 2
    assert (out / "compare.json").is_file()
    assert {p.name for p in out.iterdir() if p.is_dir()} == {"msp-0", "msp-1", "kep-0", "kep-1"}


def test_missing_library_ends_in_one_message(trained, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)

    assert call("evaluate", trained, "--method", "kfllla") == 2
    assert "pip install 'kepsvgp[laplace]'" in capsys.readouterr().err
