from dataclasses import replace

import pytest
import torch
from training.test_training import small

from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.metrics import accuracy, confidence_score, ood_auroc
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.runs.evaluation import evaluate, split_names
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import train


@pytest.fixture(scope="module")
def digits() -> Benchmark:
    return load_benchmark(small().data)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory) -> RunFolder:
    return train(small(epochs=1), digits, tmp_path_factory.mktemp("runs") / "run")


def reconfigure(run: RunFolder, text: str) -> None:
    """Gives a run another configuration, as if it had been made with it."""
    run.files.write_text("config.toml", text)


def measure(run: RunFolder, digits: Benchmark, *splits: str) -> dict[str, dict[str, float]]:
    return evaluate(run, digits, run.model("last"), method="kep", checkpoint="last", splits=splits)


def test_evaluation_writes_metrics_and_predictions(run, digits) -> None:
    measured = measure(run, digits, "val", "test")

    assert run.metrics()["last"]["kep"].keys() >= {"val", "test"}
    assert run.metrics()["last"]["kep"]["test"] == measured["test"]
    kept = run.prediction("last", "kep", "test")
    assert kept.targets is not None
    assert kept.index is not None
    assert torch.equal(kept.targets, digits.test.labels)
    assert torch.equal(kept.index, torch.arange(len(digits.test)))
    assert measured["test"]["accuracy"] == accuracy(kept.probs, digits.test.labels)
    assert measured["test"]["seconds_per_1000"] > 0


def test_other_data_are_told_from_the_test_set(run, digits) -> None:
    measured = measure(run, digits, "ood")

    test, foreign = (run.prediction("last", "kep", name) for name in ("test", "ood/photographs"))
    expected = ood_auroc(
        confidence_score(test.probs), confidence_score(foreign.probs), positive="in"
    )
    assert measured["ood/photographs"]["ood_auroc"] == expected
    assert "accuracy" not in measured["ood/photographs"]


def test_results_of_other_methods_and_checkpoints_are_kept(run, digits) -> None:
    measure(run, digits, "val")
    evaluate(run, digits, run.model("nll"), method="other", checkpoint="nll", splits=["val"])

    metrics = run.metrics()
    assert "val" in metrics["last"]["kep"]
    assert "val" in metrics["nll"]["other"]


def test_split_names_open_groups_and_keep_order(digits) -> None:
    names = split_names(digits, ["test", "ood", "test", "val"])

    assert names == ["test", "ood/photographs", "val"]
    assert set(split_names(digits, ["all"])) >= {"val", "test", "ood/photographs"}
    with pytest.raises(UserError, match="digits has no 'shift/rain/1'"):
        split_names(digits, ["shift/rain/1"])
    with pytest.raises(UserError, match=r"val, test, shift, all, .*digits has no 'ood'"):
        split_names(replace(digits, ood={}), ["test", "ood"])


def test_run_refuses_data_that_were_split_otherwise(run, digits) -> None:
    text = run.config_file.read_text()
    reconfigure(run, text.replace("test_limit = 50", "test_limit = 51"))
    try:
        with pytest.raises(UserError, match="split as they were"):
            run.benchmark()
    finally:
        reconfigure(run, text)


def test_training_on_forgets_results_of_other_weights(digits, tmp_path, monkeypatch) -> None:
    from kepsvgp.training import loop as training

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    original = training._train_epoch
    with monkeypatch.context() as patch:
        patch.setattr(
            training, "_train_epoch", lambda s, p: original(s, p) if p.epoch == 0 else interrupted()
        )
        with pytest.raises(KeyboardInterrupt):
            train(small(), digits, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    measure(run, digits, "test")
    inspect_run(run, digits)

    train(small(), digits, run.path, resume=True)

    assert run.metrics() == {}
    assert run.inspection() is None
    assert not run.predictions_file("last", "kep", "test").exists()
