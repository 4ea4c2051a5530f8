"""What processes tell each other when each holds some of the tokens of every sequence.

The first process of a group has the first tokens of all sequences, and so on. All messages are
as long for a million tokens as for one.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.maths.ksvd import Place


def place_of(
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None,
    group: dist.ProcessGroup,
) -> Place:
    """Where the tokens of this process stand: one message of a number for each sequence."""
    own = torch.full((len(x),), x.shape[1], device=x.device) if mask is None else mask.sum(dim=-1)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, own, group=group)
    counted = torch.stack(counts)
    return Place(counted[: dist.get_rank(group)].sum(dim=0), counted.sum(dim=0))


def sum_of_parts(part: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum over processes; the gradient of a part is the sum of what all make of the sum."""
    return _Sum.apply(part, group)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return sum_of_parts(grads[0], ctx.group), None


def common_generator(
    generator: torch.Generator | None, group: dist.ProcessGroup, device: torch.device
) -> torch.Generator:
    """A generator in the same state on all processes, from the first one's: eight bytes."""
    own_device = device if generator is None else generator.device
    seed = torch.randint(2**62, (1,), generator=generator, device=own_device).to(device)
    dist.broadcast(seed, dist.get_global_rank(group, 0), group=group)
    return torch.Generator(device).manual_seed(int(seed))
