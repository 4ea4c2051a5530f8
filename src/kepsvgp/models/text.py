"""The paper's text Transformers: token embeddings, optionally beside contextual features."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kepsvgp.errors import UserError
from kepsvgp.models.blocks import Block, Classifier, Embedded
from kepsvgp.ops.dropout import Dropout


class ScalarMix(nn.Module):
    r"""Learnt convex combination of an encoder's layers, $\gamma \sum_l \mathrm{softmax}(a)_l h_l$.

    References:
        Peters et al., 2018, arXiv:1802.05365, eq. 1.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(
        self, layers: Float[Tensor, "batch token layer feature"]
    ) -> Float[Tensor, "batch token feature"]:
        """The mix, as one product that reads the stack of layers once."""
        weights = (self.scale * self.scores.softmax(dim=0)).to(layers.dtype)
        return torch.einsum("l, b n l f -> b n f", weights, layers)


class TextTransformer(Classifier):
    """Transformer over tokens with mean pooling over the real ones.

    The embedding of each token, its contextual features or both beside each other are mapped to
    the width of the model and given a sinusoidal position, counted along the tokens.

    Args:
        attentions: The attention layers, first to last.
        head: Maps pooled features of width `dim` to logits.
        embedding_dim: Width of the token embeddings, or 0 for features alone.
        embedding_scale: Standard deviation of the token embeddings at the start.
        feature_layers: Layers of the frozen encoder whose features come with the tokens, or 0.
        feature_dim: Width of those features.
        encoder_layers: How the encoder's layers come together: a `ScalarMix` of them, or all
            side by side.
    """

    def __init__(
        self,
        attentions: Sequence[nn.Module],
        head: nn.Module,
        *,
        vocab_size: int,
        embedding_dim: int,
        dim: int,
        mlp_dim: int,
        embedding_scale: float = 0.1,
        dropout: float = 0.0,
        feature_layers: int = 0,
        feature_dim: int = 0,
        encoder_layers: Literal["mix", "concat"] = "mix",
    ) -> None:
        super().__init__(head)
        num_joined = feature_layers if encoder_layers == "concat" else min(feature_layers, 1)
        width = embedding_dim + num_joined * feature_dim
        if not width:
            raise UserError("embedding_dim must be positive where no features come; got 0.")
        self.dim = dim
        # nn.Embedding begins with 1, noise that takes a thousand steps to unlearn
        start = embedding_scale * torch.randn(vocab_size, embedding_dim)
        self.embedding = (
            nn.Embedding.from_pretrained(start, freeze=False) if embedding_dim else None
        )
        self.mix = None
        if feature_layers:
            self.mix = nn.Flatten(-2) if encoder_layers == "concat" else ScalarMix(feature_layers)
        self.to_tokens = nn.Linear(width, dim) if width != dim else nn.Identity()
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(Block(layer, dim, mlp_dim, dropout) for layer in attentions)
        self.norm = nn.LayerNorm(dim)

    def embed(
        self,
        tokens: Int[Tensor, "batch token"],
        mask: Bool[Tensor, "batch token"] | None = None,
        features: Float[Tensor, "batch token layer feature"] | None = None,
    ) -> Embedded:
        """The tokens at their positions; `mask` is True at real ones."""
        if (features is None) != (self.mix is None):
            wanted = "no features" if self.mix is None else "contextual features with the tokens"
            raise UserError(f"this model was built for {wanted}.")
        parts = []
        if self.embedding is not None:
            parts.append(self.embedding(tokens))
        if self.mix is not None and features is not None:
            parts.append(self.mix(features).to(self.norm.weight.dtype))
        # of one part, cat would make a copy
        x = self.to_tokens(torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0])
        places = sinusoids(tokens.shape[-1], self.dim, x.device).to(x.dtype)
        return Embedded(self.dropout(x + places), mask)


def sinusoids(
    num_tokens: int, dim: int, device: torch.device | None = None
) -> Float[Tensor, "token dim"]:
    r"""Position vectors $\sin(n\,\omega_i)$, $\cos(n\,\omega_i)$ with $\omega_i = 10^{-8i/d}$.

    References:
        Vaswani et al., 2017, arXiv:1706.03762, section 3.5.
    """
    position = torch.arange(num_tokens, device=device, dtype=torch.float32)
    # ωᵢ = 10000^(−2i/d)
    frequency = torch.exp(
        torch.arange(0, dim, 2, device=device, dtype=torch.float32) * (-math.log(10_000.0) / dim)
    )
    angle = position.unsqueeze(-1) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, :dim]
