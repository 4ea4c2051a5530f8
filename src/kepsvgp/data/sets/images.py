"""The user's own images: one folder per class, each image brought to the same size."""

from pathlib import Path

import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import pictures, store
from kepsvgp.data.augment import CropFlip
from kepsvgp.data.benchmark import Benchmark
from kepsvgp.data.examples import Normalisation, image_examples
from kepsvgp.data.sets import own
from kepsvgp.data.shifts.corrupted import corrupted_sets
from kepsvgp.errors import UserError

# folders of these names alone are parts of a data set, not classes
_PARTS = {"train", "val", "valid", "validation", "dev", "eval"}


def load(config: DataConfig) -> Benchmark:
    """Images under `path/CLASS/`, or under `path/{train,test[,val]}/CLASS/`."""
    root = own.place(config, "a folder of images")
    if not root.is_dir():
        raise UserError(f"data.path must be a folder of images; {root} is not a folder.")
    found = own.divide(find_parts(root), config, source=root)
    paths, labels, split = found.items, found.labels, found.split
    # they are opened only the first time
    listing = [(str(path), *_stamp(path)) for path in paths]
    made, name = store.generated(store.data_root(config.root)), store.key(listing)
    digests = store.cached(made / f"digests-{name}.npy", lambda: pictures.digests(paths))
    files = [digest.tobytes().hex() for digest in digests]
    name = store.key(listing, config.image_size, config.grayscale)
    array = store.cached(
        made / f"images-{name}.npy",
        lambda: pictures.read_all(paths, config.image_size, grayscale=config.grayscale),
    )
    pixels = torch.from_numpy(array)
    normalisation = Normalisation.of(pixels[: len(split.train)])
    everything = image_examples(pixels, labels, normalisation, rows=split.rows)
    train, val, test = split.parts(everything)
    corrupted = corrupted_sets(config, test)
    return Benchmark(
        config.name,
        "image",
        found.classes,
        *(train, val, test),
        config.seed,
        shifts=corrupted.sets,
        notes=(*corrupted.notes, *own.repeated(files, split, "images")),
        augment=CropFlip(padding=max(1, config.image_size // 8), flip=True),
        contents=own.contents(files, labels),
    )


def find_parts(root: Path) -> dict[str, list[tuple[object, str]]]:
    """Image files and their classes, by part."""
    folders = {child.name for child in _subfolders(root)}
    if {"train", "test"} <= folders:
        names = [name for name in ("train", "val", "test") if name in folders]
        return {name: images_by_class(root / name) for name in names}
    if "train" in folders and folders <= _PARTS:
        raise UserError(
            f"{root} must have a folder test beside its folder train, or one folder per class; it "
            f"has only {', '.join(sorted(folders))}. Add test, or set data.path to "
            f"{root / 'train'} to have the images in it divided."
        )
    return {"all": images_by_class(root)}


def _stamp(path: Path) -> tuple[int, int, int]:
    """Numbers that change with a file, even where another one is moved into its place."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _subfolders(folder: Path) -> list[Path]:
    return sorted(
        child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")
    )


def images_by_class(folder: Path) -> list[tuple[object, str]]:
    """Image files and the names of their folders, of which each is a class."""
    if not folder.is_dir():
        raise UserError(f"{folder} must be a folder with one subfolder per class; it is none.")
    classes = _subfolders(folder)
    if not classes:
        raise UserError(f"{folder} must have one subfolder per class; it has no subfolders.")
    pairs = []
    for child in classes:
        images = pictures.find(child)
        if not images:
            kinds = ", ".join(pictures.SUFFIXES)
            raise UserError(f"{child} must hold images ({kinds}); it has none.")
        pairs += [(path, child.name) for path in images]
    return pairs
