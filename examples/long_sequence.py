"""Trains on sequences whose tokens are spread over processes, each of which holds a part.

    torchrun --nproc-per-node 2 examples/long_sequence.py --tokens 131072

The task is generated: whether the tokens have more of a hidden direction than their noise would
give them. Only the first process prints, and the losses do not depend on how many
processes share a sequence. Without torchrun one process has all tokens.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kepsvgp import KEPAttention, loss
from kepsvgp.attention import mean_over_shards, sequence_parallel

DIM, HEADS, LAYERS, BATCH = 64, 4, 2, 4


class Encoder(nn.Module):
    """Pre-norm blocks and a mean over the tokens of all processes; all else is local to a token."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * LAYERS))
        self.attentions = nn.ModuleList(
            KEPAttention(DIM, HEADS, rank=8, projection="dual") for _ in range(LAYERS)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * layer](x))
            x = x + mlp(self.norms[2 * layer + 1](x))
        return self.head(mean_over_shards(x))


def examples(step: int, tokens: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The labels, and this process's part of the tokens."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(2, (BATCH,), generator=generator)
    x = torch.randn(BATCH, tokens, DIM, generator=generator)
    x[:, :, 0] += labels[:, None] - 0.5
    return x.tensor_split(world, dim=1)[rank], labels


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on sequences spread over processes.")
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
        os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    # the same weights everywhere
    torch.manual_seed(0)
    model = sequence_parallel(Encoder().train())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x, labels = examples(step, args.tokens, rank, world)
        terms = loss(model(x), labels, model, num_train=1000)
        optimizer.zero_grad()
        terms.total.backward()
        # all processes have the same loss: the gradient is the mean over them
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
        if rank == 0:
            print(f"step {step}  loss {terms.total.item():.6f}", flush=True)
    # none leaves while another may still be receiving
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
