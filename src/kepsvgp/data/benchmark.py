"""A benchmark: its splits, its shifts, what lies outside it, and how it came about."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.examples import Augment, Examples, ImageExamples, TextExamples
from kepsvgp.errors import UserError

Part = TypeVar("Part", ImageExamples, TextExamples)


class LazyExamples(Mapping[str, Examples]):
    """Sets of examples by name, each made when it is asked for and not kept."""

    def __init__(self, makers: Mapping[str, Callable[[], Examples]] | None = None) -> None:
        self._makers = dict(makers or {})

    def __getitem__(self, name: str) -> Examples:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Note(NamedTuple):
    """A remark on the data, and which of its sets it is about; None for all."""

    text: str
    about: Literal["shift", "ood"] | None = None


class Others(NamedTuple):
    """Sets beside those of a benchmark, by name, and what should be said about them."""

    sets: LazyExamples
    notes: tuple[Note, ...]


def read_notes(values: Iterable[Mapping[str, Any]]) -> tuple[Note, ...]:
    """Notes of a run's record."""
    return tuple(Note(**value) for value in values)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Everything a run needs to know about its data.

    Attributes:
        name: As in the configuration.
        task: Whether inputs are images or texts.
        classes: Name of each class.
        train: What the model learns from.
        val: What chooses among checkpoints and fits post-hoc methods.
        test: What is reported, and nothing else.
        seed: Seed of the splits.
        shifts: Lazy sets by name: `gaussian_noise/3`, or `out_of_domain` for CoLA.
        ood: Lazy sets of examples from elsewhere, by name; their labels are −1.
        notes: What was reduced, generated or is missing, for every table and report.
        augment: The augmentation that suits these images; None for none.
        vocabulary_size: Number of token ids; 0 for images.
        contents: Checksum of data of one's own, which may change under their rows; None for
            published ones.
    """

    name: str
    task: Literal["image", "text"]
    classes: tuple[str, ...]
    train: Examples
    val: Examples
    test: Examples
    seed: int
    shifts: Mapping[str, Examples] = field(default_factory=LazyExamples)
    ood: Mapping[str, Examples] = field(default_factory=LazyExamples)
    notes: tuple[Note, ...] = ()
    augment: Augment | None = None
    vocabulary_size: int = 0
    contents: str | None = None

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images; None for texts."""
        return self.train.shape if isinstance(self.train, ImageExamples) else None

    @property
    def feature_shape(self) -> tuple[int, int] | None:
        """Layers and width of the contextual features; None where there are none."""
        if not isinstance(self.train, TextExamples) or self.train.features is None:
            return None
        _, layers, width = self.train.features.shape
        return layers, width

    def split_record(self) -> dict[str, Any]:
        """Sizes, seed and a checksum of each split, to be kept with a run."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        record = {
            "name": self.name,
            "seed": self.seed,
            "sizes": {name: len(part) for name, part in splits.items()},
            "checksums": {name: checksum(part.rows) for name, part in splits.items()},
        }
        if self.contents is not None:
            record["contents"] = self.contents
        if isinstance(self.train, ImageExamples):
            mean, std = self.train.normalisation
            record["normalisation"] = {"mean": list(mean), "std": list(std)}
        return record


def is_same_split(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two split records are of the same examples."""
    return all(then.get(name) == now.get(name) for name in ("checksums", "contents"))


def checksum(rows: Int[Tensor, " example"]) -> str:
    """SHA-256 of a list of rows, in its order."""
    return hashlib.sha256(rows.to(torch.int64).numpy().astype("<i8").tobytes()).hexdigest()


class Split(NamedTuple):
    """Rows of each part of a data set; no row is in two of them."""

    train: Int[Tensor, " train"]
    val: Int[Tensor, " val"]
    test: Int[Tensor, " test"]

    def limited(self, config: DataConfig) -> "Split":
        """The first rows of each part, as many as the configuration allows."""
        return Split(
            self.train[: config.train_limit],
            self.val[: config.val_limit],
            self.test[: config.test_limit],
        )

    @property
    def rows(self) -> Int[Tensor, " row"]:
        """All rows that are used, part after part."""
        return torch.cat(self)

    def parts(self, examples: Part) -> tuple[Part, Part, Part]:
        """The three parts of examples that were made of `rows`, in that order."""
        train, val, test = torch.arange(len(examples)).split([len(part) for part in self])
        return examples.subset(train), examples.subset(val), examples.subset(test)


def random_split(total: int, *, val: int, test: int = 0, seed: int) -> Split:
    """A seeded random split of `total` rows, the same on every machine and in every run."""
    if not (val > 0 and test >= 0 and val + test < total):
        raise UserError(
            f"a split must leave every part some examples; got {total} examples for "
            f"{val} of validation and {test} of test."
        )
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    held_out = val + test
    return Split(order[held_out:], order[test:held_out], order[:test])
