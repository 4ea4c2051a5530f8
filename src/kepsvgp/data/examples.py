"""Labelled examples that stay where they are until a batch asks for them.

A split is a list of rows of a source (an array in memory or on disk, a list of texts), so
taking a part of it copies nothing. Pixels stay bytes and tokens stay one flat ragged list;
normalising and padding happen once per batch, on whole tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
Kind = TypeVar("Kind", bound="Examples")
# from bytes and one row of uniform numbers per image to bytes
Augment = Callable[
    [UInt8[Tensor, "batch channel height width"], Float[Tensor, "batch 3"]],
    UInt8[Tensor, "batch channel height width"],
]


class Batch(NamedTuple):
    """Model inputs, their labels, and where in the split they stand."""

    inputs: Inputs
    labels: Int[Tensor, " batch"]
    index: Int[Tensor, " batch"]  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True, eq=False, repr=False)
class Examples(ABC):
    """A split: labels, raw access by position, and tensors for any list of positions.

    Attributes:
        labels: Class of each example; −1 where it has none, as outside the distribution.
        rows: Position of each example in the publisher's order, which names it for good.
        places: Where each example is in what the source keeps in memory or on disk.
    """

    labels: Int[Tensor, " example"]
    rows: Int[Tensor, " example"]
    places: Int[Tensor, " example"]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} examples)"

    @abstractmethod
    def raw(self, position: int) -> np.ndarray | str:
        """What a person would look at: an image of bytes (H, W, C), or a text."""

    @abstractmethod
    def inputs(self, index: Int[Tensor, " batch"]) -> Inputs:
        """Model inputs of the examples at these positions."""

    def subset(self: Kind, index: Int[Tensor, " part"]) -> Kind:
        """The examples at these positions, in this order; nothing is copied but labels."""
        labels, rows, places = self.labels[index], self.rows[index], self.places[index]
        return replace(self, labels=labels, rows=rows, places=places)

    @property
    def lengths(self) -> Int[Tensor, " example"] | None:
        """Number of tokens of each example; None where all are of one size."""
        return None


class Normalisation(NamedTuple):
    """Mean and standard deviation per channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, pixels: UInt8[Tensor, "example channel height width"]) -> "Normalisation":
        """Statistics of a set of images, exact: from the counts of each byte value."""
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in pixels.unbind(1):
            weights = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
            first = float((weights * values).sum())
            second = float((weights * values.square()).sum())
            mean.append(first)
            # a constant channel would divide by zero
            std.append(max(second - first**2, 1e-8) ** 0.5)
        return cls(tuple(mean), tuple(std))

    def __call__(
        self, pixels: UInt8[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel height width"]:
        """(pixels / 255 − mean) / std, as one scale and one shift."""
        mean = torch.tensor(self.mean).view(-1, 1, 1)
        std = torch.tensor(self.std).view(-1, 1, 1)
        return pixels.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


@dataclass(frozen=True, eq=False, repr=False)
class ImageExamples(Examples):
    """Images as bytes, of which a split is a list of places in `pixels`.

    Attributes:
        pixels: All images of the source, in memory or mapped from disk.
        normalisation: Applied to each batch; that of the training set, for every set.
    """

    pixels: UInt8[Tensor, "place channel height width"]
    normalisation: Normalisation

    def raw(self, position: int) -> np.ndarray:
        """The image as bytes (H, W, C)."""
        return self.pixels[int(self.places[position])].movedim(0, -1).contiguous().numpy()

    def inputs(
        self,
        index: Int[Tensor, " batch"],
        augment: Augment | None = None,
        noise: Float[Tensor, "batch 3"] | None = None,
    ) -> Tensor:
        """Normalised images, after `augment` with its `noise` if there is one."""
        pixels = self.pixels[self.places[index]]
        if augment is not None and noise is not None:
            pixels = augment(pixels, noise)
        return self.normalisation(pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width


def image_examples(
    pixels: UInt8[Tensor, "example channel height width"],
    labels: Int[Tensor, " example"],
    normalisation: Normalisation,
    *,
    rows: Int[Tensor, " example"] | None = None,
) -> ImageExamples:
    """Examples of all these images, in order; `rows` names them if the order is not theirs."""
    places = torch.arange(len(pixels))
    return ImageExamples(labels, places if rows is None else rows, places, pixels, normalisation)


class Ragged(NamedTuple):
    """Sequences of different lengths, one after another in a flat list."""

    flat: Tensor
    offsets: Int[Tensor, " sequence_and_end"]

    @property
    def lengths(self) -> Int[Tensor, " sequence"]:
        """Number of entries of each sequence."""
        return self.offsets.diff()

    def positions(
        self, sequences: Int[Tensor, " batch"]
    ) -> tuple[Int[Tensor, "batch longest"], Tensor]:
        """Where in `flat` each entry is, padded to the longest, and a mask of the real ones."""
        start = self.offsets[sequences]
        length = self.offsets[sequences + 1] - start
        step = torch.arange(int(length.max()))
        mask = step < length[:, None]
        # padding repeats the first entry, so that every position can be read
        return start[:, None] + torch.where(mask, step, 0), mask

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        """From lists of integers."""
        lengths = torch.tensor([0, *map(len, sequences)])
        flat = torch.tensor([entry for part in sequences for entry in part], dtype=torch.int32)
        return cls(flat, lengths.cumsum(0))


@dataclass(frozen=True, eq=False, repr=False)
class TextExamples(Examples):
    """Texts as ragged token lists, with contextual features if an encoder made them.

    Attributes:
        tokens: Token ids of all texts of the source.
        texts: The texts themselves, by the same places; a lazy sequence will do.
        features: Hidden layers of the frozen encoder for each token of `tokens.flat`,
            `(token, layer, width)`, usually mapped from disk; None without an encoder.
        pad: The token id that fills short rows.
    """

    tokens: Ragged
    texts: Sequence[str]
    features: Float[Tensor, "token layer width"] | None = None
    pad: int = 0

    def raw(self, position: int) -> str:
        """The text."""
        return self.texts[int(self.places[position])]

    def inputs(self, index: Int[Tensor, " batch"]) -> dict[str, Tensor]:
        """Tokens and mask padded to the longest, and features if there are any."""
        positions, mask = self.tokens.positions(self.places[index])
        tokens = self.tokens.flat[positions].long().masked_fill_(~mask, self.pad)
        inputs = {"tokens": tokens, "mask": mask}
        if self.features is not None:
            features = self.features.index_select(0, positions.flatten()).to(torch.float32)
            features = features.unflatten(0, positions.shape)
            features[~mask] = 0.0
            inputs["features"] = features
        return inputs

    @property
    def lengths(self) -> Int[Tensor, " example"]:
        """Number of tokens of each example."""
        return self.tokens.lengths[self.places]
