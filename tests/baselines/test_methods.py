"""Methods by name, on real runs: digits, tiny networks, one epoch."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from kepsvgp.baselines import svdkl
from kepsvgp.baselines.methods import get_method, result_name, split_name, train_method
from kepsvgp.config import DataConfig, RunConfig
from kepsvgp.configfile import parse_config
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.evaluation import evaluate
from kepsvgp.experiments.plan import Ask, Task
from kepsvgp.experiments.records import is_trained, unfinished
from kepsvgp.experiments.work import perform
from kepsvgp.files import read_json, write_json
from kepsvgp.models.sngp import RandomFeatureGP
from kepsvgp.prediction import Prediction, predict_batches
from kepsvgp.runs import CHECKPOINTS, RunFolder
from kepsvgp.training import train

TRAINED = ["msp", "kep", "sgpa", "primal", "sngp", "svdkl"]


def settings(method: str, **sections: Any) -> RunConfig:
    values = {
        "method": method,
        "data": {"name": "digits", "train_limit": 96, "val_limit": 48, "test_limit": 40},
        "model": {
            "depth": 2, "dim": 16, "num_heads": 2, "mlp_dim": 16, "patch_size": 4,
            "kep": {"rank": 3}, "sgpa": {"num_inducing": 4}, "sngp": {"num_features": 24},
            "svdkl": {"num_features": 10, "grid_size": 16},
        },
        "train": {"epochs": 2, "batch_size": 32, "lr": 3e-3},
        "prediction": {"num_samples": 3, "batch_size": 16},
    }  # fmt: skip
    return parse_config({**values, **sections})


class Untouchable:
    """Examples that fail as soon as anything is asked of them."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a method looked at {name} of the test set")

    def __len__(self) -> int:
        raise AssertionError("a method looked at the size of the test set")


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return load_benchmark(settings("msp").data)


@pytest.fixture(scope="module")
def runs(benchmark: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    trained = {method: settings(method) for method in ("msp", "kep")}
    seeds = {name: settings("msp", seed=seed) for name, seed in (("other", 1), ("third", 2))}
    return {
        name: train_method(config, benchmark, root / name)
        for name, config in (trained | seeds).items()
    }


def predicted(predictor: Any, benchmark: Benchmark) -> Prediction:
    return predict_batches(predictor, batches(benchmark.test, 16), seed=1)


@pytest.mark.parametrize("method", TRAINED)
def test_trained_method_predicts_the_same_after_reload(
    method: str, benchmark: Benchmark, tmp_path: Path
) -> None:
    run = train_method(settings(method), benchmark, tmp_path / "run")

    once = predicted(get_method(method, run, benchmark, "last"), benchmark)
    again = predicted(get_method(method, RunFolder(tmp_path / "run"), benchmark, "last"), benchmark)

    assert torch.equal(once.probs, again.probs)
    assert_close(once.probs.sum(-1), torch.ones(40))
    # what was trained is finished: training again has nothing to do
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    train_method(settings(method), benchmark, tmp_path / "run", resume=True)
    assert files == {path: path.read_bytes() for path in files}
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes <= {".toml", ".json", ".jsonl", ".safetensors", ""}


def test_sngp_has_a_posterior_in_every_checkpoint(benchmark: Benchmark, tmp_path: Path) -> None:
    run = train_method(settings("sngp"), benchmark, tmp_path / "run")

    for checkpoint in (None, *CHECKPOINTS):
        head = run.model(checkpoint).head
        assert isinstance(head, RandomFeatureGP)
        assert head.is_fitted


def test_svdkl_takes_a_softmax_run_or_trains_one_beside_it(
    runs: dict[str, RunFolder], benchmark: Benchmark, tmp_path: Path
) -> None:
    train_method(settings("svdkl"), benchmark, tmp_path / "own")
    assert RunFolder(tmp_path / "own-softmax").config().method == "msp"

    model = settings("svdkl").model
    given = model.svdkl.model_copy(update={"softmax_run": runs["msp"].path, "epochs": 1})
    config = settings("svdkl").model_copy(
        update={"model": model.model_copy(update={"svdkl": given})}
    )
    run = train_method(config, benchmark, tmp_path / "given")
    assert not (tmp_path / "given-softmax").exists()
    history = run.history()
    assert len(history) == 1
    # a tenth of the learning rate, from the weights of the first step
    assert history[0]["lr"] < 3.1e-4
    softmax = runs["msp"].model()
    start = svdkl.starting_weights(config, softmax)
    assert set(start) == set(run.model().state_dict())
    for name, weight in softmax.state_dict().items():
        assert name.startswith("head.") or torch.equal(start[name], weight)

    wrong = model.svdkl.model_copy(update={"softmax_run": runs["kep"].path})
    config = config.model_copy(update={"model": model.model_copy(update={"svdkl": wrong})})
    with pytest.raises(UserError, match="must be a run of method 'msp'"):
        train_method(config, benchmark, tmp_path / "wrong")


POSTHOC = ["temperature", "mc_dropout", "kfllla", "kep+temperature", "kep+kfllla", "ensemble"]


@pytest.mark.parametrize("name", POSTHOC)
def test_posthoc_method_is_fitted_once_without_the_test_set_and_then_loaded(
    name: str, runs: dict[str, RunFolder], benchmark: Benchmark
) -> None:
    run = runs["kep" if name.startswith("kep") else "msp"]
    members = [runs["other"]] if name == "ensemble" else []
    hidden = copy.copy(benchmark)
    object.__setattr__(hidden, "test", Untouchable())

    fitted = get_method(name, run, hidden, "last", members=members)
    folder = run.method_folder(f"last/{name.rpartition('+')[2]}")
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    loaded = get_method(name, run, hidden, "last", members=members)

    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors"}
    first, second = (predicted(method, benchmark) for method in (fitted, loaded))
    assert torch.equal(first.probs, second.probs)


def test_fitted_method_of_other_weights_is_fitted_again(
    runs: dict[str, RunFolder], benchmark: Benchmark
) -> None:
    run = runs["msp"]
    get_method("temperature", run, benchmark, "score")
    stamp = run.method_folder("score/temperature") / "fitted.json"
    right = stamp.read_text()
    write_json(stamp, read_json(stamp) | {"weights": ["of another epoch"]})

    get_method("temperature", run, benchmark, "score")

    assert stamp.read_text() == right


def test_method_of_another_run_is_refused(runs: dict[str, RunFolder], benchmark: Benchmark) -> None:
    with pytest.raises(UserError, match="must be asked of a run of 'kep'"):
        get_method("kep+temperature", runs["msp"], benchmark, "last")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("kep", ("kep", None)),
        ("temperature", (None, "temperature")),
        ("kep+kfllla", ("kep", "kfllla")),
        ("msp+ensemble", ("msp", "ensemble")),
    ],
)
def test_name_is_split_into_its_methods(name: str, parts: tuple[Any, Any]) -> None:
    assert split_name(name) == parts


@pytest.mark.parametrize(
    "name", ["", "softmax", "kep+", "+kfllla", "kep+msp", "kep+ts", "a+kfllla"]
)
def test_unknown_method_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UserError, match=r"msp, kep.*temperature.*got"):
        split_name(name)


def test_results_of_softmax_runs_have_the_name_of_the_posthoc_method() -> None:
    assert result_name("msp", "temperature") == "temperature"
    assert result_name("kep", "temperature") == "kep+temperature"
    assert result_name("sgpa", None) == "sgpa"


def test_own_data_needs_no_more_than_a_path(tmp_path: Path) -> None:
    assert DataConfig(name="csv", path=tmp_path).path == tmp_path


def test_results_of_another_ensemble_are_forgotten(
    runs: dict[str, RunFolder], benchmark: Benchmark
) -> None:
    run, others, more = runs["msp"], [runs["other"]], [runs["third"]]
    pair = get_method("ensemble", run, benchmark, "nll", members=others)
    evaluate(run, benchmark, pair, method="ensemble", checkpoint="nll", splits=["test"])
    evaluate(run, benchmark, pair, method="msp", checkpoint="nll", splits=["test"])

    get_method("ensemble", run, benchmark, "nll", members=others)
    assert set(run.metrics()["nll"]) == {"ensemble", "msp"}
    get_method("ensemble", run, benchmark, "nll", members=[*others, *more])

    assert set(run.metrics()["nll"]) == {"msp"}
    assert not run.predictions_file("nll", "ensemble", "test").exists()
    assert run.predictions_file("nll", "msp", "test").exists()


def test_members_of_an_ensemble_are_different_runs_of_one_method_on_the_same_data(
    runs: dict[str, RunFolder], benchmark: Benchmark, tmp_path: Path
) -> None:
    run, other = runs["msp"], runs["other"]
    copied = RunFolder(Path(shutil.copytree(other.path, tmp_path / "copied")))
    fewer = {"name": "digits", "train_limit": 64, "val_limit": 48, "test_limit": 40}
    config = settings("msp", seed=3, data=fewer)
    foreign = train_method(config, load_benchmark(config.data), tmp_path / "foreign")

    for members, wrong, message in (
        ([other, run], run, "must be different runs"),
        ([other, copied], copied, "must be different runs"),
        ([other, runs["kep"]], runs["kep"], "must be runs of one method"),
        ([foreign], foreign, "must be trained on the same data"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            get_method("ensemble", run, benchmark, "last", members=members)
        assert str(wrong.path) in str(refused.value)


def test_sngp_that_was_killed_before_its_posterior_is_not_finished(
    benchmark: Benchmark, tmp_path: Path
) -> None:
    run = train(settings("sngp"), benchmark, tmp_path / "run")
    assert not is_trained(run)
    assert unfinished(run) == "stopped before its posterior was fitted"
    task = Task(name="run", config=settings("sngp"), asks=(Ask("sngp", "score", "val"),))
    assert perform(task, tmp_path) == {}
    assert is_trained(run)
    head = run.model().head
    assert isinstance(head, RandomFeatureGP)
    assert head.is_fitted
