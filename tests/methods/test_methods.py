"""Methods by name, on real runs: digits, tiny networks, one epoch."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from kepsvgp.config.file import parse_config
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, batches, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, predict_batches
from kepsvgp.methods.post_hoc import FITTED, read_stamp
from kepsvgp.methods.svdkl import SVDKL
from kepsvgp.models.sngp import RandomFeatureGP
from kepsvgp.paper.plan import Evaluation, Task
from kepsvgp.paper.work import perform
from kepsvgp.runs.evaluation import evaluate
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import CHECKPOINTS, write_weights
from kepsvgp.training.loop import train

TRAINED = ["msp", "kep", "sgpa", "primal", "sngp", "svdkl", "matched_noise"]


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


def train_method(config: RunConfig, benchmark: Benchmark, out: Path, **options: Any) -> RunFolder:
    return find_method(config.method).train(config, benchmark, out, **options)


def get_method(name: str, run: RunFolder, benchmark: Benchmark, checkpoint: str, **options) -> Any:
    method = find_method(name, on=run.config().method)
    return method.predictor(run, benchmark, checkpoint, **options)


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
    # all but SGPA, in all layers, have attention that can be observed; of 48 a quarter gives scales
    if method != "sgpa":
        assert once.novelty_p is not None
        assert torch.equal(once.novelty_p, again.novelty_p)
        assert_close(once.novelty_p * 37, (once.novelty_p * 37).round())
    # what was trained is finished: training again has nothing to do
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    train_method(settings(method), benchmark, tmp_path / "run", resume=True)
    assert files == {path: path.read_bytes() for path in files}
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes <= {".toml", ".json", ".jsonl", ".safetensors", ""}


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
    softmax = runs["msp"].model()
    start = SVDKL().starting_weights(config, softmax)
    # but for what is familiar, which is learnt anew
    assert set(start) == {n for n in run.model().state_dict() if ".novelty." not in n}
    for name, weight in softmax.state_dict().items():
        assert "head." in name or ".novelty." in name or torch.equal(start[name], weight)


def from_softmax(run: RunFolder, **sections: Any) -> RunConfig:
    config = settings("svdkl", **sections)
    svdkl = config.model.svdkl.model_copy(update={"softmax_run": run.path})
    return config.model_copy(update={"model": config.model.model_copy(update={"svdkl": svdkl})})


def test_svdkl_refuses_softmax_runs_that_are_not_its_first_step(
    runs: dict[str, RunFolder], benchmark: Benchmark, tmp_path: Path
) -> None:
    data = settings("msp").data.model_dump() | {"seed": 1}
    other_split = from_softmax(runs["msp"], data=data)
    longer = settings("msp").data.model_dump() | {"max_length": 100}
    model = settings("msp").model.model_dump() | {"depth": 1}
    stopped = RunFolder(Path(shutil.copytree(runs["msp"].path, tmp_path / "stopped")))
    stopped.write_history(stopped.history()[:1])
    stopped.files.write_json("run.json", stopped.record() | {"finished": False})

    for config, message in (
        (from_softmax(runs["kep"]), "must be a run of method 'msp'"),
        (other_split, "on the same data, split alike"),
        (from_softmax(runs["msp"], model=model), "the same inputs; model.depth"),
        (from_softmax(runs["msp"], data=longer), "the same inputs; data.max_length"),
        (from_softmax(stopped), "stopped after 1 of 2 epochs"),
    ):
        with pytest.raises(UserError, match=message):
            train_method(config, load_benchmark(config.data), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_svdkl_looks_at_its_folder_before_the_first_step(
    benchmark: Benchmark, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("")

    with pytest.raises(UserError, match="must be a new folder"):
        train_method(settings("svdkl"), benchmark, tmp_path / "run")

    assert not (tmp_path / "run-softmax").exists()


def test_posterior_of_svdkl_is_trained(tmp_path: Path) -> None:
    """Another scale of q(u) is no better for the objective than the one that was learnt."""
    schedule = {"epochs": 8, "batch_size": 32, "lr": 1e-3}
    config = settings("svdkl", data={"name": "digits"}, train=schedule)
    benchmark = load_benchmark(config.data)
    size = len(benchmark.train)
    model = train_method(config, benchmark, tmp_path / "run").model("last")
    q = model.head.gp.variational_strategy._variational_distribution
    learnt = q.chol_variational_covar.detach().clone()

    def objective(scale: float) -> float:
        """-ELBO / N."""
        with torch.no_grad():
            q.chol_variational_covar.copy_(scale * learnt)
        examples = batches(benchmark.train, size)
        found = predict_batches(model, examples, num_samples=100, keep_logits=True)
        log_likelihood = found.logits.log_softmax(-1)[:, torch.arange(size), found.targets].mean()
        kl = model.head.gp.train().variational_strategy.kl_divergence().sum()
        model.eval()
        return (kl / size - log_likelihood).item()

    best = objective(1.0)
    assert all(best < objective(scale) for scale in (0.25, 0.5, 2.0))


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
    folder = run.method_folder(f"last/{name.rpartition('+')[2]}").path
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
    folder = run.method_folder("score/temperature")
    right = read_stamp(folder)
    assert right is not None
    other = json.dumps(right | {"weights": ["of another epoch"]})
    write_weights(folder, FITTED, {}, {"stamp": other})

    get_method("temperature", run, benchmark, "score")

    assert read_stamp(folder) == right


def test_method_of_another_run_is_refused(runs: dict[str, RunFolder], benchmark: Benchmark) -> None:
    with pytest.raises(UserError, match="must be asked of a run of 'kep'"):
        get_method("kep+temperature", runs["msp"], benchmark, "last")


@pytest.mark.parametrize(
    ("given", "name", "title", "trained"),
    [
        ("kep", "kep", "KEP-SVGP", "kep"),
        ("temperature", "temperature", "Temperature scaling", "msp"),
        ("kep+kfllla", "kep+kfllla", "KEP-SVGP + KFLLLA", "kep"),
        ("msp+ensemble", "ensemble", "Deep ensemble", "msp"),
        ("kep+ensemble", "kep+ensemble", "KEP-SVGP ensemble", "kep"),
    ],
)
def test_method_is_found_by_its_name(given: str, name: str, title: str, trained: str) -> None:
    method = find_method(given)
    assert (method.name, method.title, method.trained.name) == (name, title, trained)
    assert find_method(method.trained.place).name == trained


@pytest.mark.parametrize(
    "name", ["", "softmax", "kep+", "+kfllla", "kep+msp", "kep+ts", "a+kfllla", "no.such:Thing"]
)
def test_unknown_method_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="must be"):
        find_method(name)


@pytest.mark.parametrize("method", ["msp", "kep"])
def test_results_of_another_ensemble_are_forgotten(
    method, runs: dict[str, RunFolder], benchmark: Benchmark, tmp_path: Path
) -> None:
    if method == "msp":
        run, others, more = runs["msp"], [runs["other"]], [runs["third"]]
    else:
        run, other, third = (
            train_method(settings("kep", seed=seed), benchmark, tmp_path / str(seed))
            for seed in range(3)
        )
        others, more = [other], [third]
    title = find_method(f"{method}+ensemble").name
    pair = get_method("ensemble", run, benchmark, "nll", members=others)
    evaluate(run, benchmark, pair, method=title, checkpoint="nll", splits=["test"])
    evaluate(run, benchmark, pair, method=method, checkpoint="nll", splits=["test"])

    get_method("ensemble", run, benchmark, "nll", members=others)
    assert set(run.metrics()["nll"]) == {title, method}
    get_method("ensemble", run, benchmark, "nll", members=[*others, *more])

    assert set(run.metrics()["nll"]) == {method}
    assert not run.predictions_file("nll", title, "test").exists()
    assert run.predictions_file("nll", method, "test").exists()


def test_members_of_an_ensemble_are_different_runs_of_one_method_on_the_same_data(
    runs: dict[str, RunFolder], benchmark: Benchmark, tmp_path: Path
) -> None:
    run, other = runs["msp"], runs["other"]
    copied = RunFolder(Path(shutil.copytree(other.path, tmp_path / "copied")))
    fewer = {"name": "digits", "train_limit": 64, "val_limit": 48, "test_limit": 40}
    config = settings("msp", seed=3, data=fewer)
    foreign = train_method(config, load_benchmark(config.data), tmp_path / "foreign")
    data = settings("msp").data.model_dump() | {"max_length": 100}
    config = settings("msp", seed=4, data=data)
    otherwise = train_method(config, load_benchmark(config.data), tmp_path / "otherwise")

    for members, wrong, message in (
        ([other, run], run, "must be different runs"),
        ([other, copied], copied, "must be different runs"),
        ([other, runs["kep"]], runs["kep"], "must be asked of a run of"),
        ([foreign], foreign, "must be trained on the same data"),
        ([otherwise], otherwise, "must take the same inputs; data.max_length"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            get_method("ensemble", run, benchmark, "last", members=members)
        assert str(wrong.path) in str(refused.value)


def test_sngp_that_was_killed_before_its_posterior_is_not_finished(
    benchmark: Benchmark, tmp_path: Path
) -> None:
    run = train(settings("sngp"), benchmark, tmp_path / "run", finish=False)
    # of a model without its posterior
    run.add_metrics("score", "sngp", {"test": {"nll": 0.5}})
    assert not run.is_finished()
    assert (run.unfinished() or "").startswith("stopped after its last epoch")
    wanted = (Evaluation("sngp", "score", "val"),)
    task = Task(name="run", config=settings("sngp"), evaluations=wanted)
    assert perform(task, tmp_path) == {}
    assert run.is_finished()
    for checkpoint in (None, *CHECKPOINTS):
        head = run.model(checkpoint).head
        assert isinstance(head, RandomFeatureGP)
        assert head.is_fitted
    assert run.metrics()["score"]["sngp"].keys() == {"val"}

    train_method(settings("sngp"), benchmark, run.path, resume=True)
    assert run.metrics()["score"]["sngp"].keys() == {"val"}
