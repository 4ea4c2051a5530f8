"""Softmax attention with Gaussian noise: the control for what a GP's draws are worth."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedAttention, Penalties, draws_of
from kepsvgp.ops import noise


class NoisyAttention(PenalisedAttention):
    """An attention layer whose output has independent noise of a given size in every channel.

    Args:
        attention: The layer without noise.
        dim: Width of its output.
    """

    noise_scale: Float[Tensor, " dim"]

    def __init__(self, attention: nn.Module, dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.register_buffer("noise_scale", torch.zeros(dim))

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """Attends, and adds noise in training and where samples are asked for."""
        out = self.attention(x, mask)
        if self.training:
            out = out + self.noise_scale * torch.randn_like(out)
            self.remember(None, out)
            return out
        seeds = draws_of(self)
        if seeds is None:
            if num_samples is None:
                return out
            seeds = self.draw(num_samples, generator=generator)
        eps = noise.normal(seeds.to(out.device), *out.shape[-2:], dtype=out.dtype)
        return out + self.noise_scale * (eps if num_samples is None else eps.unsqueeze(1))

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, " sample"]:
        """Seeds of noise that belongs to tokens and channels, whatever the batch."""
        return noise.draw_seeds(num_samples, generator=generator)

    def penalties(self) -> Penalties:
        """None: the noise is not learnt."""
        self.recall()
        return Penalties(self.noise_scale.new_zeros(()), self.noise_scale.new_zeros(()))
