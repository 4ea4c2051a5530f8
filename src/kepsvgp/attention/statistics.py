"""What a training pass leaves for its KSVD penalty: sums, so that processes can add theirs."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.attention.shards import sum_of_parts
from kepsvgp.maths import ksvd
from kepsvgp.ops.blocked import Projected


class ScorePair(NamedTuple):
    """Projection scores of the two branches, tokens last, and what their KSVD terms need."""

    e: Float[Tensor, "batch head rank token"]
    r: Float[Tensor, "batch head rank token"]
    trace: Float[Tensor, "*batch"]
    """Tr(W_eᵀ W_r), mean over heads, for each sequence if each has directions of its own."""
    energy: Float[Tensor, "head rank"] | None = None
    """Σ (e² + r²) over sequences and tokens, in training."""
    residual: Float[Tensor, "head rank"] | None = None
    """Σ (e − λ h_e)² + (r − λ h_r)² over sequences and tokens, where it is asked for."""


def score_pair(both: Projected, trace: Float[Tensor, "*batch"]) -> ScorePair:
    """The pair from one projection: all heads' scores of E stand before those of R."""
    e, r = both.scores.chunk(2, dim=1)
    energy = None if both.energy is None else both.energy.unflatten(0, (2, -1)).sum(dim=0)
    return ScorePair(e, r, trace, energy)


class Statistics(NamedTuple):
    """Sums over a batch from which the KSVD penalty follows."""

    energy: Float[Tensor, "head rank"]
    residual: Float[Tensor, "head rank"]
    trace: Float[Tensor, ""]
    """That of each sequence as often as it has tokens, so that J is a mean over tokens."""
    num_tokens: Float[Tensor, ""]


def statistics(pair: ScorePair, mask: Bool[Tensor, "batch token"] | None) -> Statistics:
    """The sums of one pass."""
    assert pair.energy is not None
    batch, _, _, token = pair.e.shape
    lengths = pair.energy.new_full((batch,), token) if mask is None else mask.sum(dim=-1)
    lengths = lengths.to(pair.energy.dtype)
    residual = torch.zeros_like(pair.energy) if pair.residual is None else pair.residual
    return Statistics(pair.energy, residual, (pair.trace * lengths).sum(), lengths.sum())


def sum_over_processes(local: Statistics) -> Statistics:
    """The statistics of the batch that all processes share; gradients flow to each part."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return local
    # one message: the parts one after another
    flat = [part.reshape(-1) for part in local]
    total = sum_of_parts(torch.cat(flat)).split([part.numel() for part in flat])
    shaped = (piece.reshape(part.shape) for piece, part in zip(total, local, strict=True))
    return Statistics(*shaped)


def ksvd_objective(total: Statistics, log_lambda: Float[Tensor, "head rank"]) -> Float[Tensor, ""]:
    """J², the paper's penalty."""
    trace = total.trace / total.num_tokens.clamp_min(1)
    return ksvd.objective(total.energy, total.num_tokens, log_lambda, trace).square()


def ksvd_residual(total: Statistics) -> Float[Tensor, ""]:
    """Squared distance from K H_r = H_e Λ and its adjoint, relative to the scores' energy."""
    # zero scores have no direction to be wrong about
    floor = torch.finfo(total.energy.dtype).tiny
    return (total.residual / total.energy.clamp_min(floor)).mean()
