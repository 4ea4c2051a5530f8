"""What the Transformers are made of. Everything broadcasts over a leading sample axis."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedLayer


class Classifier(nn.Module):
    """A network that ends in `head(features(inputs))`.

    Subclasses define `features`, which gives one vector for each example, `(batch, dim)`, or
    `(sample, batch, dim)` once a layer has drawn samples, and `forward` with the same arguments.
    `head` is a linear map unless another one is put in its place; one that draws samples
    itself takes `num_samples` and `generator` too.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def features(self, *args: Any, **kwargs: Any) -> Tensor:
        """Pooled features of a batch."""
        raise NotImplementedError

    def logits(
        self,
        pooled: Float[Tensor, "*sample batch dim"],
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch class"]:
        """What the head makes of pooled features."""
        if isinstance(self.head, PenalisedLayer):
            return self.head(pooled, num_samples=num_samples, generator=generator)
        return self.head(pooled)


class MLP(nn.Sequential):
    """Two linear maps with a GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(dim, hidden_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, dim),
            nn.Dropout(dropout),
        )


class Block(nn.Module):
    """Pre-norm residual block around any of our attention layers.

    The first layer that draws samples gives the tokens a leading sample axis; what follows
    broadcasts, and what came before ran once.
    """

    def __init__(self, attention: nn.Module, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim, mlp_dim, dropout)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """Attention, then the MLP, each added to what it was given."""
        x = x + self.attention(
            self.attention_norm(x), mask, num_samples=num_samples, generator=generator
        )
        return x + self.mlp(self.mlp_norm(x))


def mean_pool(
    x: Float[Tensor, "*sample batch token dim"], mask: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "*sample batch dim"]:
    """Mean over the real tokens; zero for a sequence that has none."""
    if mask is None:
        return x.mean(dim=-2)
    weights = mask.to(x.dtype)
    # Σₙ mₙ xₙ / Σₙ mₙ
    total = (x * weights.unsqueeze(-1)).sum(dim=-2)
    return total / weights.sum(dim=-1, keepdim=True).clamp(min=1)
