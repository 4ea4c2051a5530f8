"""CIFAR-10 and CIFAR-100 in the publisher's python version.

Both are split as in the paper: 45,000 to train, 5,000 to validate (a tenth of the official
training set, at random by the seed) and the official 10,000 to test.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.augment import CropFlip
from kepsvgp.data.benchmark import Benchmark, random_split
from kepsvgp.data.examples import ImageExamples, Normalisation, image_examples
from kepsvgp.data.sets.unpickle import load_plain

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Layout:
    """The names and sizes that the publisher gave to files and fields."""

    name: str
    title: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    label_field: str
    names_field: str
    num_classes: int
    rows_train: int
    rows_test: int
    normalisation: Normalisation


CIFAR10 = Layout(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    meta_file="batches.meta",
    label_field="labels",
    names_field="label_names",
    num_classes=10,
    rows_train=10_000,
    rows_test=10_000,
    normalisation=Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = Layout(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
    meta_file="meta",
    label_field="fine_labels",
    names_field="fine_label_names",
    num_classes=100,
    rows_train=50_000,
    rows_test=10_000,
    normalisation=Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)
# as the authors' program has them: the deviations of CIFAR-10 are means over images
PROGRAM = {
    "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


class Images(NamedTuple):
    """Some images of a file and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


def load(config: DataConfig, layout: Layout | None = None) -> Benchmark:
    """The benchmark with the paper's splits; shifts and other data sets come lazily."""
    from kepsvgp.data.sets import ood
    from kepsvgp.data.shifts.corrupted import corrupted_sets

    layout = layout or (CIFAR10 if config.name == CIFAR10.name else CIFAR100)
    if config.normalisation == "program":
        layout = replace(layout, normalisation=PROGRAM[layout.name])
    root = store.data_root(config.root)
    total = layout.rows_train * len(layout.train_files)
    split = random_split(total, val=total // 10, seed=config.seed).limited(config)
    images = read_train(root, layout, split.rows.numpy())
    pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
    kept = image_examples(pixels, labels, layout.normalisation, rows=split.rows)
    train, val, _ = split.parts(kept)
    test = read_test(root, layout)
    test = test.subset(torch.arange(len(test))[: config.test_limit])
    others = ood.for_cifar(root, layout)
    corrupted = corrupted_sets(
        config, test, official=root / f"{layout.title}-C", official_size=layout.rows_test
    )
    return Benchmark(
        layout.name,
        "image",
        read_classes(root, layout),
        *(train, val, test),
        config.seed,
        shifts=corrupted.sets,
        ood=others.sets,
        notes=(*corrupted.notes, *others.notes),
        augment=CropFlip(padding=4, flip=True),
    )


def read_test(root: Path, layout: Layout) -> ImageExamples:
    """The official test set."""
    pixels, labels = map(torch.from_numpy, read_file(root, layout, layout.test_file))
    return image_examples(pixels, labels, layout.normalisation)


def read_train(root: Path, layout: Layout, rows: np.ndarray) -> Images:
    """The images at these rows of the official training set, in this order.

    A file is opened only if one of the rows is in it, and only those rows of it are kept.
    """
    pixels = np.empty((len(rows), 3, SIDE, SIDE), np.uint8)
    labels = np.empty(len(rows), np.int64)
    file_of_row, row_in_file = np.divmod(rows, layout.rows_train)
    for number, name in enumerate(layout.train_files):
        here = np.flatnonzero(file_of_row == number)
        if len(here):
            part = read_file(root, layout, name)
            pixels[here], labels[here] = (array[row_in_file[here]] for array in part)
    return Images(pixels, labels)


def read_classes(root: Path, layout: Layout) -> tuple[str, ...]:
    """Names of the classes, in the order of their labels."""
    path = store.require(root / layout.folder / layout.meta_file, layout.name)
    listed = load_plain(path).get(layout.names_field)
    names = tuple(map(_text, listed if isinstance(listed, list) else ()))
    if len(names) != layout.num_classes:
        expected = f"the {layout.title} list of {layout.num_classes} classes"
        raise store.refuse(path, expected, f"it has {len(names)}")
    return names


def read_file(root: Path, layout: Layout, name: str) -> Images:
    """All images of a file and their labels; a damaged or exchanged one is refused."""
    path = store.require(root / layout.folder / name, layout.name)
    expected = f"the file {name} of {layout.title}"
    num_rows = layout.rows_test if name == layout.test_file else layout.rows_train
    content = load_plain(path)
    if not {"data", layout.label_field} <= content.keys():
        raise store.refuse(path, expected, f"it has no fields data and {layout.label_field}")
    data, labels = content["data"], content[layout.label_field]
    if not isinstance(data, np.ndarray) or data.shape != (num_rows, PIXELS):
        came = str(data.shape) if isinstance(data, np.ndarray) else "no array"
        raise store.refuse(path, expected, f"its data must be {(num_rows, PIXELS)} and is {came}")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise store.refuse(path, expected, "its labels are not a list of numbers")
    if len(labels) != num_rows or min(labels) < 0 or max(labels) >= layout.num_classes:
        came = f"{len(labels)} labels from {min(labels, default=0)} to {max(labels, default=0)}"
        wanted = f"{num_rows} from 0 to {layout.num_classes - 1}"
        raise store.refuse(path, expected, f"it has {came}, not {wanted}")
    kind = _text(content.get("batch_label", b""))
    # the files look alike, but each says which it is
    wanted = "testing" if name == layout.test_file else "training"
    number = name.rpartition("_")[2]
    wanted_number = f"batch {number} of" if number.isdigit() else ""
    if kind and (not kind.startswith(wanted) or wanted_number not in kind):
        raise store.refuse(path, expected, f"it says that it is '{kind}'")
    return Images(data.reshape(-1, 3, SIDE, SIDE), np.array(labels, np.int64))


def _text(value: object) -> str:
    # Python 2 wrote bytes
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
