from importlib.metadata import version

from commands import call

from kepsvgp.inference.activity import ADVICE
from kepsvgp.runs.folder import RunFolder


def test_train_leaves_a_measured_run(config, tmp_path, capsys) -> None:
    out = tmp_path / "run"

    changes = "train.lr=2e-2", "model.kep.refit=false"
    assert call("train", config, *changes, "--out", out) == 0

    run = RunFolder(out)
    assert run.config().train.lr == 2e-2
    metrics = run.metrics()
    assert metrics.keys() == {"score", "last"}
    assert metrics["score"]["kep"].keys() == {"val", "test"}
    last = run.history()[-1]["val"]
    assert metrics["last"]["kep"]["val"]["nll"] == last["nll"]
    printed = capsys.readouterr()
    layers = run.inspection().layers
    activity = next(layer.activity for layer in layers if layer.activity is not None)
    assert f"{activity.word}: d_eff {activity.effective_dimension:.1f}" in printed.out
    assert (f" is {activity.word}: {ADVICE[activity.word]}" in printed.err) == bool(
        ADVICE[activity.word]
    )
    assert "run folder" in printed.out
    assert "epoch 2/2" in printed.err


def test_version_is_told(capsys) -> None:
    assert call("--version") == 0

    assert capsys.readouterr().out == f"kepsvgp {version('kepsvgp')}\n"


def test_train_names_its_folder_and_tells_of_a_shorter_warm_up(
    config, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)

    changes = ("method=msp", "seed=3", "train.epochs=1", "train.warmup_epochs=2")
    assert call("train", config, *changes) == 0

    assert "shortened from 2 to 0.5 of 1 epochs" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "runs" / "small-msp-3" / "metrics.json").exists()


def test_train_of_a_variant_has_its_settings_and_its_folder(config, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert call("train", config, "train.epochs=1", "--variant", "program") == 0

    found = RunFolder(tmp_path / "runs" / "small-program-kep-0").config()
    assert found.identity()["model.kep.noise"] == "token"


def test_train_again_needs_resume_and_measures_only_what_is_missing(
    trained, config, capsys
) -> None:
    again = ("train", config, "train.epochs=1", "--out", trained)
    assert call(*again) == 2
    assert "Continue it with --resume" in capsys.readouterr().err
    # as if it was killed between its two measurements
    run, whole = RunFolder(trained), RunFolder(trained).metrics()
    part = {"score": {"kep": {"test": whole["score"]["kep"]["test"]}}}
    run.files.write_json("metrics.json", part)

    assert call(*again, "--resume") == 0

    found = run.metrics()
    assert found["score"]["kep"]["test"] == whole["score"]["kep"]["test"]
    assert found["score"]["kep"]["val"]["nll"] == whole["score"]["kep"]["val"]["nll"]
    assert found["last"]["kep"].keys() == {"val", "test"}


def test_evaluate_measures_what_is_asked_for(trained, capsys) -> None:
    assert call("evaluate", trained, "--splits", "ood", "--checkpoint", "last") == 0

    measured = RunFolder(trained).metrics()["last"]["kep"]
    assert measured["ood/photographs"].keys() >= {"ood_auroc", "ood_aupr", "ood_fpr95"}
    assert "photographs" in capsys.readouterr().out


def test_evaluate_refuses_a_folder_that_is_no_run(tmp_path, capsys) -> None:
    assert call("evaluate", tmp_path) == 2
    assert "must be a run folder" in capsys.readouterr().err
