"""What a training pass leaves for its KSVD penalty: sums, so that processes can add theirs."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.attention.projections import ScorePair
from kepsvgp.attention.shards import sum_of_parts
from kepsvgp.maths import ksvd


class Statistics(NamedTuple):
    """Sums over a batch from which the KSVD penalty follows."""

    energy: Float[Tensor, "head rank"]
    residual: Float[Tensor, "head rank"]
    trace: Float[Tensor, ""]
    """That of each sequence as often as it has tokens, so that J is a mean over tokens."""
    num_tokens: Float[Tensor, ""]


def statistics(
    pair: ScorePair,
    mask: Bool[Tensor, "batch token"] | None,
    log_lambda: Float[Tensor, "head rank"] | None = None,
) -> Statistics:
    """The sums of one pass; those of the residual only with `log_lambda`."""
    assert pair.energy is not None
    batch, _, _, token = pair.e.shape
    residual = torch.zeros_like(pair.energy)
    if log_lambda is not None and pair.dual is not None:
        dual = pair.dual if mask is None else pair.dual * mask[:, None, None, :]
        h_e, h_r = dual.chunk(2, dim=1)
        # Σ (e − λ h_e)² + (r − λ h_r)²
        residual = ksvd.residual_sums(pair.e, h_e, log_lambda)
        residual = residual + ksvd.residual_sums(pair.r, h_r, log_lambda)
    lengths = pair.energy.new_full((batch,), token) if mask is None else mask.sum(dim=-1)
    lengths = lengths.to(pair.energy.dtype)
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


def ksvd_relative(total: Statistics, log_lambda: Float[Tensor, "head rank"]) -> Float[Tensor, ""]:
    """J̃², the paper's penalty without regard to the size of the scores."""
    trace = total.trace / total.num_tokens.clamp_min(1)
    return ksvd.relative_objective(total.energy, total.num_tokens, log_lambda, trace).square()


def ksvd_residual(total: Statistics) -> Float[Tensor, ""]:
    """Squared distance from K H_r = H_e Λ and its adjoint, relative to the scores' energy."""
    # zero scores have no direction to be wrong about
    floor = torch.finfo(total.energy.dtype).tiny
    return (total.residual / total.energy.clamp_min(floor)).mean()
