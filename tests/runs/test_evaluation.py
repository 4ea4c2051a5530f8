from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from training.test_training import small

from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.metrics import accuracy, confidence_score, ood_metrics
from kepsvgp.metrics.registry import OOD_SCORES
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.runs import evaluation
from kepsvgp.runs.evaluation import _batches, evaluate, split_names
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import train


@pytest.fixture(scope="module")
def digits() -> Benchmark:
    return load_benchmark(small().data)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory) -> RunFolder:
    return train(small(epochs=1, device="cpu"), digits, tmp_path_factory.mktemp("runs") / "run")


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
    expected = ood_metrics(
        confidence_score(test.probs), confidence_score(foreign.probs), positive="in"
    )
    assert measured["ood/photographs"]["ood_auroc"] == expected["ood_auroc"]
    assert "accuracy" not in measured["ood/photographs"]


def test_other_data_are_told_by_the_scores_of_peers_too(run, digits) -> None:
    measured = measure(run, digits, "ood")["ood/photographs"]

    model = run.model("last").eval()
    with torch.no_grad():
        sets = (digits.train, digits.test, digits.ood["photographs"])
        train, test, foreign = (
            model.features(each.inputs(torch.arange(len(each)))) for each in sets
        )
        logits = {id(x): model.head(x).double() for x in (train, test, foreign)}
    ranks = {
        "energy": lambda x: logits[id(x)].exp().sum(1).reciprocal(),
        "nearest_neighbour": lambda x: _nth_distance(train, x, 50),
        "mahalanobis": lambda x: _mahalanobis(train, digits.train.labels, x),
    }
    for name, rank in ranks.items():
        expected = roc_auc_score(
            [0] * len(test) + [1] * len(foreign), rank_all(rank, test, foreign)
        )
        assert measured[f"ood_auroc_{name}"] == pytest.approx(expected, abs=2e-3), name
    # the familiar set is the positive class
    by_energy = rank_all(ranks["energy"], test, foreign)
    precision = average_precision_score([1] * len(test) + [0] * len(foreign), -by_energy)
    assert measured["ood_aupr_energy"] == pytest.approx(precision, abs=2e-3)
    assert {f"ood_auroc_{name}" for name in OOD_SCORES} - {"ood_auroc_novelty"} <= measured.keys()


def rank_all(rank, *sets: torch.Tensor) -> np.ndarray:
    return torch.cat([rank(each) for each in sets]).numpy()


def _nth_distance(known: torch.Tensor, x: torch.Tensor, n: int) -> torch.Tensor:
    known, x = (each.double() / each.double().norm(dim=1, keepdim=True) for each in (known, x))
    # |a − b|² = 2 − 2 a·b on the sphere
    return (2 - 2 * x @ known.T).sort(dim=1).values[:, n - 1]


def _mahalanobis(known: torch.Tensor, labels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    known, x = (each.double() / each.double().norm(dim=1, keepdim=True) for each in (known, x))
    means = {int(c): known[labels == c].mean(0) for c in labels.unique()}
    centred = torch.stack([k - means[int(y)] for k, y in zip(known, labels, strict=True)])
    # without the direction that LayerNorm leaves empty
    size, axes = torch.linalg.eigh(centred.T @ centred / len(known))
    axes = axes[:, size > 1e-10 * size[-1]] / size[size > 1e-10 * size[-1]].sqrt()
    away = torch.stack([((x - m) @ axes).square().sum(dim=1) for m in means.values()])
    return away.min(dim=0).values


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


class Stop(Exception):
    """Ends a measurement where what is asked for is known."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that the `cpu` of a configuration stands for, as a GPU would."""
    device = torch.device("meta")

    def find_device(wanted: str, *, is_binding: bool) -> torch.device:
        # a run that was trained on another machine can be measured here
        assert not is_binding
        return {"cpu": device}[wanted]

    monkeypatch.setattr(evaluation, "find_device", find_device)
    return device


def test_predictor_is_made_on_the_device_of_the_configuration(run, digits, elsewhere) -> None:
    class Method:
        name = "asked"

        def predictor(self, *_, device: torch.device, **__) -> None:
            raise Stop(device)

    with pytest.raises(Stop) as found:
        evaluation.measure(run, Method(), digits)

    assert found.value.args == (elsewhere,)


def test_model_is_measured_on_the_device_of_the_configuration(
    run, digits, monkeypatch, elsewhere
) -> None:
    def predict(predictor, examples, config, device, **_) -> None:
        raise Stop(device, *{parameter.device for parameter in predictor.parameters()})

    monkeypatch.setattr(evaluation, "predict_examples", predict)

    with pytest.raises(Stop) as found:
        measure(run, digits, "test")

    assert found.value.args == (elsewhere, elsewhere)


def test_batches_for_a_gpu_come_from_pinned_memory(digits) -> None:
    kinds = ("cuda", "cpu")
    pinned = {kind: _batches(digits.val, small(), torch.device(kind)).pin for kind in kinds}

    assert pinned == {"cuda": True, "cpu": False}
