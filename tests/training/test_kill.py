"""Runs that are killed for good, with SIGKILL, and continued."""

import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kepsvgp.config.file import parse_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.runs.folder import RunFolder

KILLS = 10


def config() -> RunConfig:
    return parse_config(
        {
            "method": "kep",
            "data": {"train_limit": 320, "val_limit": 50},
            "model": {
                "depth": 1,
                "dim": 24,
                "num_heads": 4,
                "mlp_dim": 24,
                "patch_size": 4,
                "kep": {"rank": 3},
            },
            "prediction": {"num_samples": 2},
            "train": {"epochs": 4, "batch_size": 32, "lr": 1e-2, "save_steps": 3},
        }
    )


def train_in_child(out: Path) -> None:
    torch.set_num_threads(1)
    from kepsvgp.data import load_benchmark
    from kepsvgp.training.loop import train

    train(config(), load_benchmark(config().data), out, resume=True)


@pytest.fixture(scope="module")
def processes():
    """Processes that fork from a server which has imported everything, so that they start fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kepsvgp.training.loop", "kepsvgp.data.sets.digits"])
    return context


def results(out: Path) -> tuple[list[dict], dict[str, torch.Tensor]]:
    run = RunFolder(out)
    timed = ("seconds", "val_seconds", "data_wait")
    history = [{k: v for k, v in entry.items() if k not in timed} for entry in run.history()]
    files = [*sorted((run.path / "checkpoints").iterdir()), run.weights_file()]
    weights = {f"{f.name}/{n}": t for f in files for n, t in load_file(f).items()}
    return history, weights


@pytest.mark.slow
def test_killed_runs_continue_to_the_same_weights(processes, tmp_path) -> None:
    start = time.monotonic()
    whole = processes.Process(target=train_in_child, args=(tmp_path / "whole",))
    whole.start()
    whole.join()
    assert whole.exitcode == 0
    duration = time.monotonic() - start

    moments = random.Random(20)
    kills, number = 0, 0
    while kills < KILLS:
        child = processes.Process(target=train_in_child, args=(tmp_path / f"killed{number}",))
        child.start()
        child.join(timeout=moments.uniform(0, 0.7 * duration))
        if child.is_alive():
            child.kill()
            child.join()
        if child.exitcode == -signal.SIGKILL:
            kills += 1
        else:
            # it came to its end before its time: the next kill meets a new run
            assert child.exitcode == 0
            number += 1

    expected_history, expected = results(tmp_path / "whole")
    for folder in tmp_path.glob("killed*"):
        last = processes.Process(target=train_in_child, args=(folder,))
        last.start()
        last.join()
        assert last.exitcode == 0
        history, weights = results(folder)
        assert history == expected_history
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert not list(folder.rglob("*.part"))
