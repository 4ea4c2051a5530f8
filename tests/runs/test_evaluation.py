from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from kepsvgp.config.file import parse_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.metrics import accuracy, confidence_score, ood_auroc
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.runs.evaluation import evaluate, split_names
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import train


def config() -> RunConfig:
    return parse_config(
        {
            "method": "kep",
            "data": {"train_limit": 200, "val_limit": 50, "test_limit": 60},
            "model": {
                "depth": 1,
                "dim": 12,
                "num_heads": 2,
                "mlp_dim": 12,
                "patch_size": 4,
                "kep": {"rank": 3},
            },
            "prediction": {"num_samples": 3, "batch_size": 7},
            "train": {"epochs": 1, "batch_size": 20, "lr": 1e-2},
        }
    )


@pytest.fixture(scope="module")
def digits() -> Benchmark:
    return load_benchmark(config().data)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory) -> RunFolder:
    return train(config(), digits, tmp_path_factory.mktemp("runs") / "run")


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


def test_evaluation_gives_the_same_answer_for_any_batch_size(run, digits) -> None:
    first = measure(run, digits, "test")
    kept = run.prediction("last", "kep", "test")
    text = run.config_file.read_text()
    reconfigure(run, text.replace("batch_size = 7", "batch_size = 60"))

    second = measure(run, digits, "test")
    again = run.prediction("last", "kep", "test")
    reconfigure(run, text)

    # sums of another order differ in the last digits
    assert_close(again.probs, kept.probs, rtol=1e-4, atol=1e-6)
    assert first["test"]["accuracy"] == second["test"]["accuracy"]


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
    reconfigure(run, text.replace("test_limit = 60", "test_limit = 61"))
    try:
        with pytest.raises(UserError, match="split as they were"):
            run.benchmark()
    finally:
        reconfigure(run, text)


def test_training_on_forgets_results_of_other_weights(digits, tmp_path, monkeypatch) -> None:
    from kepsvgp.training import loop as training

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    longer = parse_config(
        config().model_dump(exclude_none=True) | {"train": {"epochs": 2, "batch_size": 20}}
    )
    original = training._train_epoch
    with monkeypatch.context() as patch:
        patch.setattr(
            training, "_train_epoch", lambda s, p: original(s, p) if p.epoch == 0 else interrupted()
        )
        with pytest.raises(KeyboardInterrupt):
            train(longer, digits, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    measure(run, digits, "test")
    inspect_run(run, digits)

    train(longer, digits, run.path, resume=True)

    assert run.metrics() == {}
    assert run.inspection() is None
    assert not run.predictions_file("last", "kep", "test").exists()
