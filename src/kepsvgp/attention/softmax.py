r"""Softmax self-attention, the layer that KEP-SVGP replaces.

    O = softmax(Q Kᵀ / √d_k) V,   one head per d_k columns,   then a linear map over heads.

It runs on `scaled_dot_product_attention`, so that the N × N matrix need not be stored.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from kepsvgp.attention import checks
from kepsvgp.attention.novelty import ObservedAttention
from kepsvgp.ops.dropout import Dropout


class SoftmaxAttention(ObservedAttention):
    r"""Multi-head self-attention with the scale $1/\sqrt{d_k}$, $d_k$ the width of a head.

    Differs from the authors' baseline, which divides by the square root of the whole width and
    lets real tokens attend to padding; see `docs/decisions.md`.

    Args:
        dim: Width of the tokens, divided evenly among the heads.
        attention_dropout: Share of the attention weights dropped in training.
        dropout: Share of the outputs dropped in training.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        checks.heads("dim", dim, num_heads)
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.to_output = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """Attends within each sequence; `mask` is True at real tokens.

        `num_samples` and `generator` are part of the signature that all our attention layers
        share. This layer draws nothing: tokens with a leading sample axis keep it, and only
        Monte Carlo dropout adds one.
        """
        *leading, num_tokens, dim = x.shape
        # fused kernels want exactly four axes: sample and batch become one
        q, k, v = (
            self.to_qkv(x)
            .reshape(-1, num_tokens, 3, self.num_heads, dim // self.num_heads)
            .permute(2, 0, 3, 1, 4)
        )
        self.observe(x, lambda: torch.cat([q, k], dim=1), mask)
        values = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if mask is None else _key_mask(mask, q),
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        merged = values.transpose(1, 2).reshape(*leading, num_tokens, dim)
        return self.dropout(self.to_output(merged))


def _key_mask(
    mask: Bool[Tensor, "batch token"], q: Float[Tensor, "sequence head token feature"]
) -> Bool[Tensor, "sequence 1 1 token"]:
    """Which keys may be attended to; a row of padding alone attends to itself, not to nothing."""
    keys = mask | ~mask.any(dim=-1, keepdim=True)
    if q.shape[0] != mask.shape[0]:
        keys = keys.repeat(q.shape[0] // mask.shape[0], 1)
    return keys[:, None, None, :]
