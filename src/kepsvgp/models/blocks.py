"""What the Transformers are made of. Everything broadcasts over a leading sample axis."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedLayer, draws_of, stochastic_layers, use_draws
from kepsvgp.attention.kep import KEPAttention
from kepsvgp.ops import pooling
from kepsvgp.ops.dropout import Dropout
from kepsvgp.ops.pooling import can_take_in_samples, form_samples, mean_pool, pool_samples
from kepsvgp.ops.private import is_untouched


class Classifier(nn.Module):
    """A Transformer that ends in `head(features(inputs))`.

    Subclasses have `blocks` and a `norm`, and define `embed`. `head` is a linear map unless
    another one is put in its place; one that draws samples itself takes `num_samples` and
    `generator` too.
    """

    blocks: nn.ModuleList
    norm: nn.Module

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def embed(self, *inputs: Any, **named: Any) -> "Embedded":
        """The tokens of a batch."""
        raise NotImplementedError

    def features(
        self,
        *inputs: Any,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        **named: Any,
    ) -> Float[Tensor, "*sample batch dim"]:
        """Normalised mean of the last tokens, with a sample axis once a layer has drawn samples."""
        x, mask = self.embed(*inputs, **named)
        blocks = list(self.blocks)
        return self.norm(encode(blocks, x, mask, num_samples=num_samples, generator=generator))

    def forward(
        self,
        *inputs: Any,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        **named: Any,
    ) -> Float[Tensor, "*sample batch class"]:
        """Logits; the inputs are those of `embed`."""
        draws: dict[str, Any] = {"num_samples": num_samples, "generator": generator}
        pooled = self.features(*inputs, **draws, **named)
        return self.head(pooled, **(draws if isinstance(self.head, PenalisedLayer) else {}))


class Embedded(NamedTuple):
    """Tokens, and which of them are real; None where all are."""

    tokens: Float[Tensor, "batch token dim"]
    mask: Bool[Tensor, "batch token"] | None = None


class MLP(nn.Sequential):
    """Two linear maps with a GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(dim, hidden_dim),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden_dim, dim),
            Dropout(dropout),
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
        pool: bool = False,
    ) -> Float[Tensor, "*samples batch token dim"] | Float[Tensor, "*samples batch dim"]:
        """Attention, then the MLP, each added to what it was given.

        With `pool`, the mean over the real tokens. Means and linear maps commute, so without
        dropout the MLP's last map is then applied once for each sequence, not for each token.
        """
        normalised = self.attention_norm(x)
        if num_samples is not None and self.takes_in_samples(x):
            assert isinstance(self.attention, KEPAttention)
            factors = self.attention.factors(
                normalised, mask, num_samples=num_samples, generator=generator
            )
            if not pool:
                return form_samples(x, factors, self.mlp_norm, self.mlp)
            return _zero_if_empty(pool_samples(x, mask, factors, self.mlp_norm, self.mlp), mask)
        x = x + self.attention(normalised, mask, num_samples=num_samples, generator=generator)
        if not pool:
            return x + self.mlp(self.mlp_norm(x))
        if _has_training_parts(self.mlp) or not is_untouched(self.mlp, MLP):
            return mean_pool(x + self.mlp(self.mlp_norm(x)), mask)
        to_hidden, activation, _, to_output, _ = self.mlp
        hidden = activation(to_hidden(self.mlp_norm(x)))
        return _zero_if_empty(mean_pool(x, mask) + to_output(mean_pool(hidden, mask)), mask)

    def takes_in_samples(self, x: Float[Tensor, "*sample batch token dim"]) -> bool:
        """Whether the MLP takes in the maps that make the samples.

        Then they are pooled without being formed, and in slices of their own.
        """
        return (
            isinstance(self.attention, KEPAttention)
            and is_untouched(self.attention, KEPAttention)
            and self.attention.has_narrow_factors
            and is_untouched(self.mlp, MLP)
            and can_take_in_samples(x, self.mlp_norm, self.mlp)
            and not _has_training_parts(self)
        )


def _zero_if_empty(pooled: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over no real token is zero, whatever bias was added to it."""
    return pooled if mask is None else pooled * mask.any(dim=-1, keepdim=True)


def encode(
    blocks: Sequence[nn.Module],
    x: Float[Tensor, "*sample batch token dim"],
    mask: Bool[Tensor, "batch token"] | None = None,
    *,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*samples batch dim"]:
    """`mean_pool` of what the blocks, one after another, make of the tokens.

    From the first stochastic layer on there is S times as much of everything. In evaluation the
    batch passes that part in slices, so that a prediction with many samples needs no more memory
    than a pass, and little more traffic. All slices meet the same draws, and no sequence knows
    its batch, so nothing else changes. Where dropout is on, which counts its calls when it is
    sampled, the batch stays whole.
    """
    layers = [stochastic_layers(block) for block in blocks]
    # whatever comes before the first draw runs once
    first = next((i for i, own in enumerate(layers) if own), len(blocks) - 1)
    for block in blocks[:first]:
        x = block(x, mask)

    def rest(x: Tensor, mask: Tensor | None) -> Tensor:
        for block in blocks[first:-1]:
            x = block(x, mask, num_samples=num_samples, generator=generator)
        return blocks[-1](x, mask, num_samples=num_samples, generator=generator, pool=True)

    drawing = [layer for own in layers for layer in own]
    whole = not drawing or torch.compiler.is_compiling() or any(map(_has_training_parts, blocks))
    batch, last = x.shape[-3], blocks[-1]
    if num_samples is None or whole or batch == 0:
        return rest(x, mask)
    if blocks[first] is last and isinstance(last, Block) and last.takes_in_samples(x):
        # it cuts slices of its own
        return rest(x, mask)
    num_bytes = x.nbytes // batch * (num_samples if x.ndim == 3 else 1)
    size = max(1, pooling.slice_bytes(x) // max(1, num_bytes))
    slices = [slice(start, start + size) for start in range(0, batch, size)]
    with use_draws(_draws_for(drawing, num_samples, generator)):
        parts = [rest(x[..., rows, :, :], None if mask is None else mask[rows]) for rows in slices]
    return torch.cat(parts, dim=-2)


def _has_training_parts(module: nn.Module) -> bool:
    """Whether anything in it is in training mode, as dropout is that Monte Carlo samples."""
    return any(part.training for part in module.modules())


def _draws_for(
    layers: Sequence[PenalisedLayer], num_samples: int, generator: torch.Generator | None
) -> dict[nn.Module, Tensor]:
    """The draws that are fixed already, and new ones for the other layers."""
    held = {layer: draws_of(layer) for layer in layers}
    return {
        layer: layer.draw(num_samples, generator=generator) if draws is None else draws
        for layer, draws in held.items()
    }
