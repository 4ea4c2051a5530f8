"""CIFAR-10 and CIFAR-100 in the publisher's formats, python pickles or binary files.

Both are split as in the paper: 45,000 to train, 5,000 to validate (a tenth of the official
training set, at random by the seed) and the official 10,000 to test.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.augment import CropFlip
from kepsvgp.data.benchmark import Benchmark, LazyExamples, random_split
from kepsvgp.data.examples import ImageExamples, Normalisation, image_examples
from kepsvgp.data.sets.unpickle import load_plain

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Layout:
    """The names and sizes that the publisher gave to files and fields."""

    name: str
    title: str
    python_folder: str
    binary_folder: str
    train_files: tuple[str, ...]
    test_file: str
    meta_file: str
    binary_meta_file: str
    label_field: str
    names_field: str
    num_classes: int
    rows_train: int
    rows_test: int
    # the binary files of CIFAR-100 have the coarse label before the fine one
    binary_label_bytes: int
    normalisation: Normalisation


CIFAR10 = Layout(
    name="cifar10",
    title="CIFAR-10",
    python_folder="cifar-10-batches-py",
    binary_folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    meta_file="batches.meta",
    binary_meta_file="batches.meta.txt",
    label_field="labels",
    names_field="label_names",
    num_classes=10,
    rows_train=10_000,
    rows_test=10_000,
    binary_label_bytes=1,
    normalisation=Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = Layout(
    name="cifar100",
    title="CIFAR-100",
    python_folder="cifar-100-python",
    binary_folder="cifar-100-binary",
    train_files=("train",),
    test_file="test",
    meta_file="meta",
    binary_meta_file="fine_label_names.txt",
    label_field="fine_labels",
    names_field="fine_label_names",
    num_classes=100,
    rows_train=50_000,
    rows_test=10_000,
    binary_label_bytes=2,
    normalisation=Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


class Images(NamedTuple):
    """Some images of a file and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


def load(config: DataConfig, layout: Layout | None = None) -> Benchmark:
    """The benchmark with the paper's splits; shifts and other data sets come lazily."""
    from kepsvgp.data.sets import ood
    from kepsvgp.data.shifts.corrupted import corrupted_sets

    layout = layout or (CIFAR10 if config.name == CIFAR10.name else CIFAR100)
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
        name=layout.name,
        task="image",
        classes=read_classes(root, layout),
        train=train,
        val=val,
        test=test,
        seed=config.seed,
        shifts=corrupted.sets,
        ood=LazyExamples(others.makers),
        notes=(*corrupted.notes, *others.notes),
        augment=CropFlip(padding=4, flip=True),
    )


def read_test(
    root: Path, layout: Layout, normalisation: Normalisation | None = None
) -> ImageExamples:
    """The official test set, normalised as another data set's if that is given."""
    images = _read(root, layout, layout.test_file, None)
    return image_examples(
        torch.from_numpy(images.pixels),
        torch.from_numpy(images.labels),
        normalisation or layout.normalisation,
    )


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
            part = _read(root, layout, name, row_in_file[here])
            pixels[here], labels[here] = part.pixels, part.labels
    return Images(pixels, labels)


def read_classes(root: Path, layout: Layout) -> tuple[str, ...]:
    """Names of the classes, in the order of their labels."""
    binary = root / layout.binary_folder / layout.binary_meta_file
    path = root / layout.python_folder / layout.meta_file
    if binary.exists() and not path.exists():
        text = binary.read_bytes().decode("utf-8", errors="replace")
        names = tuple(line for line in text.split("\n") if line)
        path = binary
    else:
        content = load_plain(store.require(path, layout.name))
        listed = content.get(layout.names_field)
        names = tuple(
            name.decode("latin1") if isinstance(name, bytes) else str(name)
            for name in (listed if isinstance(listed, list) else ())
        )
    if len(names) != layout.num_classes:
        expected = f"the {layout.title} list of {layout.num_classes} classes"
        raise store.refuse(path, expected, f"it has {len(names)}")
    return names


def check_file(root: Path, layout: Layout, name: str) -> None:
    """Reads a file of the data set and forgets it; a damaged one is an error."""
    _read(root, layout, name, None)


def is_there(root: Path, layout: Layout, name: str) -> bool:
    """Whether a file of the data set is there, in either format."""
    binary = root / layout.binary_folder / f"{name}.bin"
    return (root / layout.python_folder / name).exists() or binary.exists()


def _read(root: Path, layout: Layout, name: str, rows: np.ndarray | None) -> Images:
    path = root / layout.python_folder / name
    binary = root / layout.binary_folder / f"{name}.bin"
    if binary.exists() and not path.exists():
        return _read_binary(binary, layout, name, rows)
    return _read_python(store.require(path, layout.name), layout, name, rows)


def _rows_of(layout: Layout, name: str) -> int:
    return layout.rows_test if name == layout.test_file else layout.rows_train


def _read_python(path: Path, layout: Layout, name: str, rows: np.ndarray | None) -> Images:
    expected = f"the file {name} of {layout.title} (python version)"
    content = load_plain(path)
    if not {"data", layout.label_field} <= content.keys():
        raise store.refuse(path, expected, f"it has no fields data and {layout.label_field}")
    data, labels = content["data"], content[layout.label_field]
    shape = (_rows_of(layout, name), PIXELS)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != shape:
        came = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else "no array"
        raise store.refuse(path, expected, f"its data must be uint8 {shape} and is {came}")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise store.refuse(path, expected, "its labels are not a list of numbers")
    kind = content.get("batch_label", b"")
    kind = kind.decode("latin1") if isinstance(kind, bytes) else str(kind)
    # the files look alike, but each says which it is
    wanted = "testing" if name == layout.test_file else "training"
    number = name.rpartition("_")[2]
    wanted_number = f"batch {number} of" if number.isdigit() else ""
    if kind and (not kind.startswith(wanted) or wanted_number not in kind):
        raise store.refuse(path, expected, f"it says that it is '{kind}'")
    return _checked(path, expected, layout, data, np.array(labels, np.int64), rows)


def _read_binary(path: Path, layout: Layout, name: str, rows: np.ndarray | None) -> Images:
    expected = f"the file {name}.bin of {layout.title} (binary version)"
    width = layout.binary_label_bytes + PIXELS
    wanted = _rows_of(layout, name) * width
    if path.stat().st_size != wanted:
        raise store.refuse(path, expected, f"{wanted} bytes, not {path.stat().st_size}")
    table = np.memmap(path, np.uint8, mode="r").reshape(-1, width)
    labels = table[:, layout.binary_label_bytes - 1].astype(np.int64)
    return _checked(path, expected, layout, table[:, layout.binary_label_bytes :], labels, rows)


def _checked(
    path: Path,
    expected: str,
    layout: Layout,
    data: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray | None,
) -> Images:
    if len(labels) != len(data) or labels.min() < 0 or labels.max() >= layout.num_classes:
        came = f"{len(labels)} labels from {labels.min()} to {labels.max()}"
        wanted = f"{len(data)} from 0 to {layout.num_classes - 1}"
        raise store.refuse(path, expected, f"it has {came}, not {wanted}")
    if rows is not None:
        data, labels = data[rows], labels[rows]
    return Images(np.array(data).reshape(-1, 3, SIDE, SIDE), labels)
