"""Primal-Attention: the singular scores of the attention kernel, without a posterior."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import PenalisedAttention, Penalties, repeat_mask
from kepsvgp.attention.statistics import (
    ScorePair,
    ksvd_objective,
    score_pair,
    statistics,
    sum_over_processes,
)
from kepsvgp.errors import UserError
from kepsvgp.maths import ksvd
from kepsvgp.ops import blocked, blocked_dual
from kepsvgp.ops.dropout import Dropout

Projection = Literal["landmark", "free", "dual"]


class PrimalAttention(PenalisedAttention):
    r"""Self-attention in the primal representation of kernel SVD; nothing in it is random.

    The scores $E = \Phi_q W_e$ and $R = \Phi_k W_r$ are those of `KEPAttention`, and so is the
    KSVD penalty; what the sparse GP pair puts behind them is left out:
    $O = [E, R]\,W + b$, with a map W shared by the heads.

    Args:
        dim: Width of the tokens, divided evenly among the heads.
        num_heads: Number of heads.
        rank: Number s of singular pairs kept.
        num_landmarks: Tokens that define the data-dependent directions; `10 * rank` by default.
        projection: Where the directions come from; see `KEPAttention`.
        qk_bias: Whether the query and key maps have a bias.
        dropout: Dropout on the output.

    References:
        Chen et al., 2023, arXiv:2305.19798.
    """

    is_stochastic: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rank: int = 10,
        num_landmarks: int | None = None,
        projection: Projection = "landmark",
        qk_bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_landmarks = 10 * rank if num_landmarks is None else num_landmarks
        checks.positive(dim=dim, num_heads=num_heads, rank=rank, num_landmarks=num_landmarks)
        if dim % num_heads != 0:
            raise UserError(f"dim must be divisible by num_heads={num_heads}; got {dim}.")
        checks.choice("projection", projection, Projection)
        self.dim, self.num_heads, self.rank = dim, num_heads, rank
        self.projection, self.num_landmarks = projection, num_landmarks
        self.to_qk = nn.Linear(dim, 2 * dim, bias=qk_bias)
        if projection == "dual":
            self.to_dual = nn.Linear(dim, 2 * num_heads * rank, bias=False)
        else:
            rows = num_landmarks if projection == "landmark" else dim // num_heads
            self.w_e = nn.Parameter(ksvd.orthonormal_columns(num_heads, rows, rank))
            self.w_r = nn.Parameter(ksvd.orthonormal_columns(num_heads, rows, rank))
        self.log_lambda = nn.Parameter(torch.zeros(num_heads, rank))
        self.to_output = nn.Linear(2 * rank, dim // num_heads)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """The attention output; see `KEPAttention.forward` for the arguments.

        `num_samples` and `generator` are part of the signature that all our attention layers
        share. This layer draws nothing: tokens with a leading sample axis keep it.
        """
        samples = x.shape[0] if x.ndim == 4 and num_samples is None else num_samples
        checks.tokens(x, mask, samples, dim=self.dim, num_tokens=None)
        sequences = x.flatten(0, -3)
        mask = repeat_mask(mask, sequences)
        pair = self.scores(sequences, mask)
        if self.training:
            # now and not when asked for: parameters may be sharded outside of the forward pass
            self.remember((statistics(pair, mask), self.log_lambda.clone()))
        # [E, R] W + b, heads side by side
        both = torch.cat([pair.e, pair.r], dim=-2).mT
        out = self.to_output(both.to(x.dtype)).transpose(1, 2).flatten(-2)
        return self.dropout(out.unflatten(0, x.shape[:-2]))

    def scores(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> ScorePair:
        """Projection scores Eᵀ = (Φ_q W_e)ᵀ and Rᵀ = (Φ_k W_r)ᵀ, zero at padding."""
        # (batch 2·head token feature): queries of all heads, then keys of all heads
        qk = self.to_qk(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2)
        if self.projection == "dual":
            dual = self.to_dual(x).unflatten(-1, (2 * self.num_heads, -1)).permute(0, 2, 3, 1)
            both, directions = blocked_dual.dual_scores(qk, dual, mask, with_energy=self.training)
            return score_pair(both, ksvd.mean_trace(*directions.chunk(2, dim=1)))
        if self.projection == "landmark":
            directions = ksvd.landmark_directions(x, mask, self.w_e, self.w_r)
        else:
            directions = torch.cat([self.w_e, self.w_r])
        both = blocked.project(qk, directions, mask, with_energy=self.training)
        return score_pair(both, ksvd.mean_trace(self.w_e, self.w_r))

    def penalties(self) -> Penalties:
        """The KSVD penalty of the last training pass, which is forgotten by the call."""
        last, log_lambda = self.recall()
        penalty = ksvd_objective(sum_over_processes(last), log_lambda)
        return Penalties(kl=torch.zeros_like(penalty), ksvd=penalty)

    def extra_repr(self) -> str:
        """The settings that the parameters do not show."""
        return f"num_heads={self.num_heads}, rank={self.rank}, projection={self.projection!r}"
