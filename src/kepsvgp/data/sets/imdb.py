"""IMDB film reviews (Maas et al., 2011) in the publisher's folders.

`split="official"` tests on the publisher's 25,000 test reviews and holds a tenth of the training
reviews out for validation. `split="paper"` pools all 50,000 and splits them again at random into
35,000 / 5,000 / 10,000, as the paper did.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.benchmark import Benchmark, LazyExamples, Note, Split, random_split
from kepsvgp.data.sets.foreign import SIZE, for_texts
from kepsvgp.data.text.prepare import prepare
from kepsvgp.data.text.tokens import FileTexts
from kepsvgp.errors import UserError

FOLDER = "aclImdb"
CLASSES = ("negative", "positive")
# in each of train/neg, train/pos, test/neg, test/pos
REVIEWS = 12_500
_NAME = re.compile(r"(\d+)_(\d+)\.txt")


class Review(NamedTuple):
    """A review by its number, its file, the file's size and time of change, and its class."""

    number: int
    path: Path
    size: int
    changed: int
    label: int


def load(config: DataConfig, *, reviews: int = REVIEWS) -> Benchmark:
    """The reviews, of which each of the four folders must have so many."""
    root = store.data_root(config.root)
    listed = list_reviews(root, reviews)
    split = _split(config, reviews).limited(config)
    wanted = split.rows
    # only the reviews that are used are read, and only if their tokens are not on disk
    used = [listed[row] for row in wanted.tolist()]
    made = prepare(
        config,
        FileTexts([review.path for review in used], clean),
        torch.tensor([review.label for review in used]),
        wanted,
        fingerprint=[(str(review.path), review.size, review.changed) for review in used],
    )
    tested = [listed[row].path for row in split.test.tolist()]
    pooled = Note("all 50,000 reviews were pooled and split again, as in the paper")
    return Benchmark(
        "imdb",
        "text",
        CLASSES,
        *split.parts(made.examples),
        config.seed,
        notes=(pooled,) if config.split == "paper" else (),
        ood=LazyExamples(for_texts(config, root, lambda: FileTexts(tested[:SIZE], clean))),
        vocabulary_size=made.vocabulary_size,
    )


def clean(review: str) -> str:
    """The review without the line breaks that its web page had."""
    return review.replace("<br />", " ")


def list_reviews(root: Path, reviews: int = REVIEWS) -> list[Review]:
    """All reviews, training before test, negative before positive, by number."""
    listed = []
    for part in ("train", "test"):
        for label, kind in enumerate(("neg", "pos")):
            folder = store.require(root / FOLDER / part / kind, "imdb")
            listed += list_folder(folder, label, reviews)
    return listed


def list_folder(folder: Path, label: int, reviews: int = REVIEWS) -> list[Review]:
    """The reviews of one folder, by number; fewer or more than there should be are refused."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None:
                continue
            rating = int(match[2])
            # good reviews have 7 to 10 stars, bad ones 1 to 4
            if (rating >= 7) != bool(label) or rating in (5, 6):
                raise UserError(
                    f"{folder} must hold the {CLASSES[label]} reviews of IMDB; {entry.name} has "
                    f"{rating} stars. Delete {FOLDER} and fetch it again."
                )
            status = entry.stat()
            found.append(
                Review(int(match[1]), Path(entry.path), status.st_size, status.st_mtime_ns, label)
            )
    if len(found) != reviews:
        raise UserError(
            f"{folder} must hold {reviews} reviews; it has {len(found)}. It is incomplete or "
            f"something else: delete {FOLDER} and fetch it again (`kepsvgp data fetch imdb`)."
        )
    return sorted(found)


def _split(config: DataConfig, reviews: int) -> Split:
    half = 2 * reviews
    if config.split == "paper":
        return random_split(2 * half, val=half // 5, test=2 * half // 5, seed=config.seed)
    official = random_split(half, val=half // 10, seed=config.seed)
    # in a random order, so that a limited test set has both classes
    order = torch.randperm(half, generator=torch.Generator().manual_seed(config.seed))
    return Split(official.train, official.val, half + order)
