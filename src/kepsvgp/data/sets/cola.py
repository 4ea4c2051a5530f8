"""CoLA, the Corpus of Linguistic Acceptability (Warstadt et al., 2018), in its raw files.

A tenth of the in-domain training sentences is held out for validation, the in-domain
development sentences are the test set, and the out-of-domain ones are a shift. The authors'
program pools both in-domain files and tests on a fifth of them.
"""

import math
import random
from pathlib import Path
from typing import NamedTuple

import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.benchmark import Benchmark, LazyExamples, Note, Split, random_split
from kepsvgp.data.sets.foreign import SIZE, for_texts
from kepsvgp.data.text.prepare import prepare

FOLDER = "cola_public/raw"
CLASSES = ("unacceptable", "acceptable")


class Sizes(NamedTuple):
    """Number of sentences of each file."""

    in_domain_train: int = 8_551
    in_domain_dev: int = 527
    out_of_domain_dev: int = 516


class Sentences(NamedTuple):
    """Sentences and whether they are acceptable."""

    texts: list[str]
    labels: list[int]


def load(config: DataConfig, *, sizes: Sizes | None = None) -> Benchmark:
    """The benchmark; `sizes` are those of the official files unless said otherwise."""
    root = store.data_root(config.root)
    sizes = sizes or Sizes()
    train, dev, other = (
        read(root / FOLDER / f"{name}.tsv", size)
        for name, size in zip(sizes._fields, sizes, strict=True)
    )
    # rows count on from one file to the next
    held = Sentences(train.texts + dev.texts, train.labels + dev.labels)
    split = _split(config, len(train.texts), len(held.texts)).limited(config)
    elsewhere = torch.arange(len(other.texts)) + len(held.texts)
    texts = [held.texts[row] for row in split.rows.tolist()] + other.texts
    labels = [held.labels[row] for row in split.rows.tolist()] + other.labels
    rows = torch.cat([split.rows, elsewhere])
    made = prepare(config, texts, torch.tensor(labels), rows, fingerprint=texts)
    near, far = torch.arange(len(texts)).split([len(split.rows), len(elsewhere)])
    in_domain, out_of_domain = made.examples.subset(near), made.examples.subset(far)
    return Benchmark(
        "cola",
        "text",
        CLASSES,
        *split.parts(in_domain),
        config.seed,
        shifts=LazyExamples({"out_of_domain": lambda: out_of_domain}),
        ood=LazyExamples(
            for_texts(config, root, lambda: [held.texts[row] for row in split.test[:SIZE]])
        ),
        notes=(Note(_NOTES[config.split]),),
        vocabulary_size=made.vocabulary_size,
    )


_NOTES = {
    "official": "tested on the official in-domain development sentences; the numbers that the "
    "paper printed are from its program's split, whose test set is 1,816 sentences of train and "
    "dev and also chose the epoch",
    "program": "tested on the 1,816 sentences of the authors' program; a part of its training "
    "sentences is for validation here, where the program chose the epoch by the test set",
}


def _split(config: DataConfig, num_train: int, total: int) -> Split:
    if config.split == "official":
        inner = random_split(num_train, val=num_train // 10, seed=config.seed)
        return Split(inner.train, inner.val, torch.arange(num_train, total))
    # 70, 10 and 20 in a hundred, of which the program trains on the first two
    order = list(range(total))
    random.Random(config.seed).shuffle(order)
    train, test = math.ceil(0.7 * total), math.ceil(0.2 * total)
    sizes = [train, total - train - test, test]
    return Split(*torch.tensor(order).split(sizes))


def read(path: Path, size: int) -> Sentences:
    """The sentences of one file: source, label, the author's mark and the sentence."""
    expected = f"a CoLA file of {size} lines"
    try:
        lines = store.require(path, "cola").read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise store.refuse(path, expected, f"it is not UTF-8 ({error})") from None
    # the last line may or may not end
    if lines and not lines[-1]:
        lines.pop()
    fields = [line.rstrip("\r").split("\t") for line in lines]
    for number, parts in enumerate(fields, start=1):
        if len(parts) != 4 or parts[1] not in ("0", "1") or not parts[3].strip():
            came = f"line {number} is not a source, 0 or 1, a mark and a sentence"
            raise store.refuse(path, expected, came)
    if len(fields) != size:
        raise store.refuse(path, expected, f"it has {len(fields)}")
    return Sentences([parts[3] for parts in fields], [int(parts[1]) for parts in fields])
