"""Sequences whose tokens are spread over processes.

Each process holds some of the tokens of every sequence: the first process the first ones, and so
on. Everything in a `KEPAttention` is local to a token but the directions, and those are sums
over tokens,

    W_{e|X} = Σ_r X_{M,r}ᵀ W_e        (landmark; those landmarks that process r holds)
    W_e = Σ_r Φ_{k,r}ᵀ H_r / n        (dual; those tokens that process r holds, of n in all)

so that one sum over processes of a p × s matrix for each head, sequence and direction is all
there is to send, however long the sequences are. Softmax attention must send keys and values.

All processes take part in every pass, forwards and backwards, or the others wait for them. The
gradient on a process is that of the sum of all processes' losses. Where all have the same
loss, which is what pooling over all tokens leads to, average gradients of parameters as
`DistributedDataParallel` does; where each has the loss of its own tokens, add them up.
"""

import torch.distributed as dist

# Its default arguments keep the group that exists when it is first imported, and with it threads
# that outlive `destroy_process_group` and abort the process as it ends. Torch's optimisers import
# it late, mostly after the group was made; so it is imported here.
import torch.distributed.nn.functional  # noqa: F401
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.shards import sum_of_parts
from kepsvgp.errors import UserError


def sequence_parallel(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Tells the KEP layers of a model that their tokens are spread over a process group.

    Args:
        model: Any model; everything in it but the KEP layers must be local to a token.
        group: The processes that share sequences; all of them by default.

    Returns:
        The same model.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise UserError(
            "sequence_parallel must run among processes; torch.distributed is not initialised. "
            "Start with torchrun and call torch.distributed.init_process_group first."
        )
    layers = [module for module in model.modules() if isinstance(module, KEPAttention)]
    if not layers:
        raise UserError("model must have KEPAttention layers; it has none.")
    for layer in layers:
        if layer.merge != "add":
            raise UserError(
                f"merge must be 'add' where tokens are spread over processes; got {layer.merge!r}"
                ", whose map over tokens no process could apply alone."
            )
        if layer.noise != "joint":
            raise UserError(
                "noise must be 'joint' where tokens are spread over processes; "
                f"got {layer.noise!r}."
            )
    for layer in layers:
        layer.sequence_group = dist.group.WORLD if group is None else group
    return model


def mean_over_shards(
    x: Float[Tensor, "*sample batch token dim"],
    mask: Bool[Tensor, "batch token"] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "*sample batch dim"]:
    """Mean over the real tokens of whole sequences, the same on all processes."""
    group = dist.group.WORLD if group is None else group
    assert group is not None
    weights = x.new_ones(x.shape[-3:-1]) if mask is None else mask.to(x.dtype)
    total = (weights.unsqueeze(-2) @ x).squeeze(-2)
    count = weights.sum(dim=-1)
    dist.all_reduce(count, group=group)
    return sum_of_parts(total, group) / count.clamp_min(1).unsqueeze(-1)
