"""Same seed, same bits: across processes, orders of batches and threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from breaking import CONFIG, assert_same_results, many, run_command
from safetensors.torch import load_file

from kepsvgp.config.file import load_config
from kepsvgp.data import batches, load_benchmark
from kepsvgp.inference.prediction import predict_batches
from kepsvgp.runs.folder import RunFolder


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(CONFIG)
    return path


def in_a_new_process(config: Path, out: Path, hash_seed: str) -> None:
    """A process that shares nothing with others, not even the order of its sets."""
    done = subprocess.run(
        [sys.executable, "-m", "kepsvgp", "train", config, "train.epochs=2", "--out", out],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_processes_come_to_the_same_bits(config, tmp_path, tried) -> None:
    runs = [tmp_path / str(number) for number in range(many(2, 5))]
    for number, out in enumerate(runs):
        in_a_new_process(config, out, str(number + 1))
    for out in runs[1:]:
        assert_same_results(out, runs[0])
        # tensors to the last bit; the words in a header have no order
        for name in ("model.safetensors", "predictions/score/kep/test.safetensors"):
            one, other = load_file(out / name), load_file(runs[0] / name)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)
    tried("processes of one seed, equal to the last bit", len(runs))


METHODS = ("sgpa", "kep", "msp", "primal", "sngp", "svdkl")


@pytest.mark.parametrize("method", METHODS[: many(1, len(METHODS))])
def test_every_method_comes_to_the_same_bits(method, processes, config, tmp_path, tried) -> None:
    for name in ("one", "two"):
        ended = run_command(
            processes, tmp_path / "text", "train", config, f"method={method}", "train.epochs=1",
            "--out", tmp_path / name,
        )  # fmt: skip
        assert ended.code == 0, ended.err
    assert_same_results(tmp_path / "one", tmp_path / "two")
    tried("processes of one seed, equal to the last bit", 2)


def test_prediction_does_not_depend_on_the_order_of_batches(config, tmp_path, tried) -> None:
    settings = load_config(config, ["train.epochs=1"])
    benchmark = load_benchmark(settings.data)
    from kepsvgp.training.loop import train

    model = train(settings, benchmark, tmp_path / "run").model("last")
    whole = list(batches(benchmark.test, 10))
    expected = predict_batches(model, whole, num_samples=3, seed=1)
    tries = many(5, 100)
    for seed in range(tries):
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
        found = predict_batches(model, [whole[i] for i in order], num_samples=3, seed=1)
        assert torch.equal(found.probs, expected.probs)
        assert torch.equal(found.aleatoric, expected.aleatoric)
    assert RunFolder(tmp_path / "run").model("last").training is False
    tried("orders of batches with the same prediction", tries)


@pytest.mark.parametrize(("kind", "step"), [("eager", 5), ("compiled", 9)])
def test_many_threads_predict_as_one(kind, step, tried) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(here.parent)])
    done = subprocess.run(
        [sys.executable, here / "threads.py", kind, str(many(16, 160)), str(many(step, 1))],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    tried(
        f"predictions of {kind} models from 8 threads, equal to the serial ones", int(done.stdout)
    )
