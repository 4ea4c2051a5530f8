"""What KEP and Primal attention share: scores of the kernel's singular pairs, and their penalty."""

from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import PenalisedAttention, Penalties, WholeLinear
from kepsvgp.attention.novelty import ObservedAttention
from kepsvgp.attention.projections import PROJECTIONS, Batch, Projection, ScorePair
from kepsvgp.attention.statistics import (
    Statistics,
    ksvd_objective,
    ksvd_relative,
    ksvd_residual,
    statistics,
    sum_over_processes,
)
from kepsvgp.config.defaults import KSVD_LOSS
from kepsvgp.errors import UserError

KSVDLoss = Literal["objective", "relative", "residual"]


class Call(NamedTuple):
    """What a call in training leaves behind for its penalties.

    Values and not parameters, which may be sharded by the time they are asked for.
    """

    statistics: Statistics
    log_lambda: Float[Tensor, "head rank"]
    kl: Float[Tensor, ""] | None


class KernelSVDAttention(PenalisedAttention, ObservedAttention):
    """Attention through the scores E = Φ_q W_e and R = Φ_k W_r; see `KEPAttention`."""

    # what the projection learns: the first two, or the third
    w_e: Tensor
    w_r: Tensor
    to_dual: nn.Linear

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rank: int,
        num_landmarks: int | None,
        projection: Projection,
        qk_bias: bool,
        qk_dim: int | None = None,
        ksvd_loss: KSVDLoss = KSVD_LOSS,
    ) -> None:
        super().__init__()
        qk_dim = dim if qk_dim is None else qk_dim
        num_landmarks = 10 * rank if num_landmarks is None else num_landmarks
        checks.positive(dim=dim, num_heads=num_heads, rank=rank, num_landmarks=num_landmarks)
        checks.choice("projection", projection, Projection)
        checks.heads("dim", dim, num_heads)
        checks.heads("qk_dim", qk_dim, num_heads)
        if projection == "landmark" and qk_dim != dim:
            raise UserError(
                "projection='landmark' must have queries and keys as wide as the tokens, "
                f"{dim}; got {qk_dim}. Take 'dual' or 'free'."
            )
        self.dim, self.num_heads, self.rank = dim, num_heads, rank
        self.head_dim = qk_dim // num_heads
        self.projection, self.num_landmarks = projection, num_landmarks
        self.ksvd_loss = ksvd_loss
        # the processes that share sequences; `sequence_parallel` sets it
        self.sequence_group: dist.ProcessGroup | None = None
        self.to_qk = WholeLinear(dim, 2 * qk_dim, bias=qk_bias)
        for name, value in PROJECTIONS[projection].learnt(self).items():
            setattr(self, name, value)
        self.log_lambda = nn.Parameter(torch.zeros(num_heads, rank))

    def scores(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> ScorePair:
        """Projection scores Eᵀ = (Φ_q W_e)ᵀ and Rᵀ = (Φ_k W_r)ᵀ, zero at padding."""
        # (batch 2·head token feature): queries of all heads, then keys of all heads
        qk = self.to_qk(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2)
        self.observe(x, lambda: qk, mask)
        batch = Batch(x, qk, mask, self.sequence_group)
        return PROJECTIONS[self.projection].scores(self, batch)

    def statistics(self, pair: ScorePair, mask: Bool[Tensor, "batch token"] | None) -> Statistics:
        """What the KSVD penalty needs of a call."""
        return statistics(pair, mask, self.log_lambda if self.ksvd_loss == "residual" else None)

    def penalties(self) -> Penalties:
        """KL of q(u), and the KSVD penalty of the last training pass.

        The pass is forgotten by the call, so that no graph outlives its step. A layer that was
        called more than once in it has the sum of its penalties; in compiled code, which cannot
        tell passes apart, that of the last call. Where processes share a batch
        (`torch.distributed` is initialised), the penalty is that of the whole batch, and all of
        them must call.
        """
        calls: list[Call] = self.recall()
        penalty = torch.stack([self._ksvd(call) for call in calls]).sum()
        # the KL is that of the parameters, however often they were used
        kl = calls[-1].kl
        return Penalties(torch.zeros_like(penalty) if kl is None else kl, penalty)

    def _ksvd(self, call: Call) -> Float[Tensor, ""]:
        total = sum_over_processes(call.statistics)
        if self.ksvd_loss == "residual":
            return ksvd_residual(total)
        if self.ksvd_loss == "relative":
            return ksvd_relative(total, call.log_lambda)
        return ksvd_objective(total, call.log_lambda)
