"""Primal-Attention: the singular scores of the attention kernel, without a posterior."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import repeat_mask
from kepsvgp.attention.kernel_svd import Call, KernelSVDAttention, KSVDLoss
from kepsvgp.attention.projections import Projection
from kepsvgp.config.defaults import KSVD_LOSS, PROJECTION
from kepsvgp.ops.dropout import Dropout


class PrimalAttention(KernelSVDAttention):
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
        ksvd_loss: The KSVD penalty; see `KEPAttention`.
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
        projection: Projection = PROJECTION,
        qk_bias: bool = False,
        ksvd_loss: KSVDLoss = KSVD_LOSS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            dim, num_heads, rank=rank, num_landmarks=num_landmarks, projection=projection,
            qk_bias=qk_bias, ksvd_loss=ksvd_loss,
        )  # fmt: skip
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
        # [E, R] W + b, heads side by side
        both = pair.both.transpose(1, 2).flatten(2, 3).mT
        out = self.to_output(both.to(x.dtype)).transpose(1, 2).flatten(-2)
        out = self.dropout(out.unflatten(0, x.shape[:-2]))
        if self.training:
            sums = self.statistics(pair, mask)
            self.remember(Call(sums, self.log_lambda.clone(), kl=None), out)
        return out

    def extra_repr(self) -> str:
        """The settings that the parameters do not show."""
        return f"num_heads={self.num_heads}, rank={self.rank}, projection={self.projection!r}"
