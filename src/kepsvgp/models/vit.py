"""The paper's Vision Transformer: patches, learnt positions, mean pooling, no class token."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.errors import UserError
from kepsvgp.models.blocks import Block, Classifier, Embedded


class VisionTransformer(Classifier):
    """Vision Transformer over square patches, one block for each attention layer given.

    Args:
        attentions: The attention layers, first to last.
        head: Maps pooled features of width `dim` to logits.
        image_size: Height and width of the images, both multiples of `patch_size`.
    """

    def __init__(
        self,
        attentions: Sequence[nn.Module],
        head: nn.Module,
        *,
        image_size: tuple[int, int],
        channels: int,
        patch_size: int,
        dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(head)
        self.patch_size = patch_size
        self.to_tokens = nn.Linear(channels * patch_size**2, dim)
        # of the size of the tokens: at a fiftieth of it, softmax attention needs far more epochs
        # to tell places apart
        self.positions = nn.Parameter(torch.randn(num_patches(image_size, patch_size), dim))
        self.blocks = nn.ModuleList(Block(layer, dim, mlp_dim, dropout) for layer in attentions)
        self.norm = nn.LayerNorm(dim)

    def embed(self, images: Float[Tensor, "batch channel height width"]) -> Embedded:
        """The patches at their positions."""
        return Embedded(self.to_tokens(patches(images, self.patch_size)) + self.positions)


def num_patches(image_size: tuple[int, int], patch_size: int) -> int:
    """Number of patches of an image; both sides must be multiples of the patch."""
    height, width = image_size
    if height % patch_size or width % patch_size:
        raise UserError(
            f"patch_size must divide the image's sides {height} and {width}; got {patch_size}."
        )
    return (height // patch_size) * (width // patch_size)


def patches(
    images: Float[Tensor, "batch channel height width"], patch_size: int
) -> Float[Tensor, "batch token value"]:
    """Non-overlapping patches, row by row, each flattened with its channels first."""
    rows = images.unflatten(-1, (-1, patch_size)).unflatten(-3, (-1, patch_size))
    # (batch, channel, row, y, column, x) → (batch, row, column, channel, y, x)
    return torch.einsum("b c r y k x -> b r k c y x", rows).flatten(3).flatten(1, 2)
