"""Layers whose weights are spread over processes by `fully_shard`, against one process."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close

from benchmarks.traffic import connected
from kepsvgp.attention import KEPAttention
from kepsvgp.models import TextTransformer
from kepsvgp.training.objective import loss

BATCH, STEPS = 8, 3


def losses(processes: int, rank: int) -> torch.Tensor:
    """Cross-entropy and KSVD penalty of some steps, each process with its share of the batch."""
    torch.manual_seed(0)
    # a posterior that is a point: processes have noise of their own
    layers = [KEPAttention(16, 2, rank=1, projection="dual", posterior_scale=1e-6) for _ in "ab"]
    model = TextTransformer(
        layers, torch.nn.Linear(16, 2), vocab_size=50, embedding_dim=16, dim=16, mlp_dim=32
    )
    if processes > 1:
        mesh = init_device_mesh("cpu", (processes,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(50, (BATCH, 11), generator=generator).chunk(processes)[rank]
        labels = torch.randint(2, (BATCH,), generator=generator).chunk(processes)[rank]
        terms = loss(model(tokens), labels, model, num_train=BATCH, ksvd_weight=1.0)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        found.append(torch.stack([terms.nll, terms.ksvd]).detach())
    return torch.stack(found)


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with connected(rank, 2, folder / "meet"):
        found = losses(2, rank)
        dist.all_reduce(found)
    if rank == 0:
        (folder / "losses").write_text(" ".join(map(str, (found / 2).flatten().tolist())))


@pytest.mark.slow
def test_sharded_weights_have_the_losses_of_one_process(tmp_path: Path) -> None:
    spawn(work, (tmp_path,), nprocs=2)
    found = torch.tensor([float(word) for word in (tmp_path / "losses").read_text().split()])
    # float32
    assert_close(found.view(STEPS, 2), losses(1, 0), rtol=1e-4, atol=1e-6)
