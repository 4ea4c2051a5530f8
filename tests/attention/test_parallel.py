"""Layers whose tokens are spread over real processes, against one process that has them all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing import spawn
from torch.testing import assert_close

from benchmarks.traffic import connected
from kepsvgp.attention import KEPAttention, mean_over_shards, sequence_parallel
from kepsvgp.attention.base import use_draws
from kepsvgp.errors import UserError
from kepsvgp.ops.pooling import mean_pool

BATCH, TOKEN, DIM, HEADS, RANK = 3, 31, 15, 3, 4
# the second process has more than the first, and the last one has no token of the first sequence
CUTS = [0, 6, 19, 31]
PROCESSES = len(CUTS) - 1


class Case(NamedTuple):
    projection: str
    masked: bool


CASES = [
    Case(projection, masked)
    for projection in ("landmark", "free", "dual")
    for masked in (False, True)
]


def build(projection: str) -> KEPAttention:
    torch.manual_seed(1)
    layer = KEPAttention(
        DIM,
        HEADS,
        rank=RANK,
        projection=projection,
        num_landmarks=7,
        ksvd_loss="residual" if projection == "dual" else "objective",
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def problem(masked: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    sizes = {"x": (BATCH, TOKEN, DIM), "weight": (BATCH, TOKEN, DIM), "u": (1, HEADS, RANK, RANK)}
    values = {
        name: torch.randn(size, generator=generator, dtype=torch.float64)
        for name, size in sizes.items()
    }
    if masked:
        mask = torch.rand(BATCH, TOKEN, generator=generator) < 0.7
        # one sequence ends within the first process, and one has no token at all
        mask[0, 5:] = False
        mask[1] = False
        values["mask"] = mask
    return values


class Solution(NamedTuple):
    of_tokens: dict[str, Tensor]
    """What belongs to the tokens at hand."""
    parameter_grads: dict[str, Tensor]
    """Their sum over processes is the gradient."""
    common: dict[str, Tensor]
    """The same on all processes."""


def solve(case: Case, layer: KEPAttention, tokens: slice, processes: int) -> Solution:
    """A loss of the tokens, of their mean and of the penalties, and its gradients."""
    values = problem(case.masked)
    x = values["x"][:, tokens].clone().requires_grad_()
    mask = values["mask"][:, tokens] if case.masked else None
    with use_draws({layer: values["u"]}):
        out = layer(x, mask)
    pooled = mean_pool(out, mask) if processes == 1 else mean_over_shards(out, mask)
    kl, ksvd, _ = layer.penalties()
    # what is the same on all processes counts once in the sum of their losses
    common = (pooled.pow(3).sum() + kl + ksvd) / processes
    ((out * values["weight"][:, tokens]).sum() + common).backward()
    assert x.grad is not None
    grads = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    assert len(grads) == len(list(layer.parameters()))
    common = {"pooled": pooled.detach(), "ksvd": ksvd.detach()}
    return Solution({"out": out.detach(), "x": x.grad}, grads, common)


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with connected(rank, PROCESSES, folder / "meet"):
        for number, case in enumerate(CASES):
            layer = build(case.projection)
            sequence_parallel(layer)
            tokens = slice(CUTS[rank], CUTS[rank + 1])
            solution = solve(case, layer, tokens, PROCESSES)
            for grad in solution.parameter_grads.values():
                dist.all_reduce(grad)
            # generators of different seeds
            drawn = layer.draw(2, generator=torch.Generator().manual_seed(rank))
            found = {name: value for part in solution for name, value in part.items()}
            found["drawn"] = drawn.detach().contiguous()
            save_file(found, folder / f"{number}-{rank}.safetensors")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[dict[str, Tensor]]]:
    """What every process found, by case."""
    folder = tmp_path_factory.mktemp("parts")
    spawn(work, (folder,), nprocs=PROCESSES)
    return {
        case: [load_file(folder / f"{number}-{rank}.safetensors") for rank in range(PROCESSES)]
        for number, case in enumerate(CASES)
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_equal_those_of_one_process(case: Case, parts) -> None:
    alone = solve(case, build(case.projection), slice(None), processes=1)
    for name, whole in alone.of_tokens.items():
        assert_close(torch.cat([part[name] for part in parts[case]], dim=1), whole)
    for name, whole in {**alone.parameter_grads, **alone.common}.items():
        for part in parts[case]:
            assert_close(part[name], whole)


@pytest.mark.slow
def test_processes_share_draws(parts) -> None:
    first, *others = (part["drawn"] for part in parts[CASES[0]])
    for other in others:
        assert_close(other, first, rtol=0, atol=0)


_TRAINED_AND_LEFT = """
import os, sys
import torch
import torch.distributed as dist
from kepsvgp.attention import KEPAttention, sequence_parallel
store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = sequence_parallel(KEPAttention(4, 2, rank=2))
torch.optim.Adam(model.parameters())
del model
dist.destroy_process_group()
print(*(open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc, which Linux has")
def test_no_thread_of_a_group_outlives_it(tmp_path: Path) -> None:
    # one that does aborts the process as it ends, now and then
    command = [sys.executable, "-c", _TRAINED_AND_LEFT, str(tmp_path / "store")]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "gloo" not in done.stdout


def test_sequence_parallel_wants_processes() -> None:
    with pytest.raises(UserError, match=r"not initialised\. Start with torchrun"):
        sequence_parallel(build("dual"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.Linear(2, 2), "must have KEPAttention layers; it has none"),
        (KEPAttention(4, 2, merge="concat", num_tokens=3), "merge must be 'add'.*'concat'"),
        (KEPAttention(4, 2, noise="token"), "noise must be 'joint'.*'token'"),
    ],
)
def test_models_that_cannot_be_spread_are_refused(
    model: torch.nn.Module, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with connected(0, 1, tmp_path / "meet"), pytest.raises(UserError, match=message):
        sequence_parallel(model)
