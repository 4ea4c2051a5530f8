"""Augmentation of whole batches of images, driven by numbers drawn beforehand.

The noise is an argument, one row of three uniform numbers per image, so that a batch split
among processes is augmented exactly as it would be in one piece.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class CropFlip:
    """Random crop after padding with black, then a mirror image in half of the cases.

    Attributes:
        padding: Pixels added on each side before the crop.
        flip: Whether left and right may be exchanged.
    """

    padding: int = 4
    flip: bool = True

    def __call__(
        self,
        pixels: UInt8[Tensor, "batch channel height width"],
        noise: Float[Tensor, "batch 3"],
    ) -> UInt8[Tensor, "batch channel height width"]:
        """The batch, each image shifted and mirrored by its own row of `noise`."""
        _, _, height, width = pixels.shape
        padded = F.pad(pixels, (self.padding,) * 4)
        # floor of u (2p + 1): each of 0 … 2p equally likely
        down, right = (noise[:, :2] * (2 * self.padding + 1)).long().unbind(1)
        rows = down[:, None] + torch.arange(height)
        columns = right[:, None] + torch.arange(width)
        if self.flip:
            columns = torch.where(noise[:, 2:] < 0.5, columns.flip(1), columns)
        # one gather for the batch; the channel axis comes last out of mixed indexing
        batch = torch.arange(len(pixels))[:, None, None]
        cropped = padded[batch, :, rows[:, :, None], columns[:, None, :]]
        return cropped.movedim(-1, 1).contiguous()
