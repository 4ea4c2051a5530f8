"""The same command in two processes, through torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import PartialState
from torch.testing import assert_close

from kepsvgp.config.sections import TrainConfig
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.processes import make_accelerator

# Processes have noise of their own, so it is off: no dropout, and a posterior that is a point.
# Its rank is 1, as the correlations of a larger one start at zero and learn from the noise.
NOISELESS = """
method = "kep"
[data]
train_limit = 200
val_limit = 51
test_limit = 20
[model]
depth = 2
dim = 12
num_heads = 2
mlp_dim = 12
patch_size = 4
dropout = 0.0
[model.kep]
rank = 1
posterior_scale = 1e-6
[train]
epochs = 2
batch_size = 32
lr = 1e-2
clip_norm = 1.0
save_steps = 4
[prediction]
num_samples = 2
"""


def launch(processes: int, config: Path, out: Path, *more: str) -> subprocess.CompletedProcess:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return subprocess.run(
        [*start, "kepsvgp", "train", str(config), *more, "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_training_has_its_own_device_and_not_that_of_the_last(monkeypatch) -> None:
    wanted = TrainConfig(device="cpu")
    make_accelerator(wanted)
    monkeypatch.setitem(PartialState._shared_state, "device", torch.device("meta"))

    assert make_accelerator(wanted).device == torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("method", [["method=kep"], ["method=primal", "model.kep.rank=3"]])
def test_two_processes_have_the_loss_curve_of_one(tmp_path, method) -> None:
    config = tmp_path / "noiseless.toml"
    config.write_text(NOISELESS)
    for number in (1, 2):
        done = launch(number, config, tmp_path / str(number), *method)
        assert done.returncode == 0, done.stderr
        # only the first process speaks
        assert done.stderr.count("epoch 2/2") == 1

    one, two = (RunFolder(tmp_path / str(number)).history() for number in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert_close(a["train"], b["train"], rtol=1e-5, atol=1e-5)
        assert_close(a["val"]["nll"], b["val"]["nll"], rtol=1e-5, atol=1e-5)
        assert a["val"]["accuracy"] == b["val"]["accuracy"]


@pytest.mark.slow
def test_a_batch_that_processes_cannot_share_is_refused(tmp_path) -> None:
    config = tmp_path / "noiseless.toml"
    config.write_text(NOISELESS)

    done = launch(2, config, tmp_path / "run", "train.batch_size=33")

    assert done.returncode != 0
    assert "train.batch_size must be divisible by 2 processes" in done.stderr
    assert not (tmp_path / "run").exists()
