"""Corrupted test sets: the official arrays where they are at hand, generated ones elsewhere."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import store
from kepsvgp.data.benchmark import LazyExamples, Note, Others
from kepsvgp.data.examples import Examples, ImageExamples, image_examples
from kepsvgp.data.shifts import corruptions


def corrupted_sets(
    config: DataConfig,
    test: ImageExamples,
    *,
    official: Path | None = None,
    official_size: int = 10_000,
    cache: bool = True,
) -> Others:
    """The test set under each corruption and severity.

    Args:
        config: Which arrays may be used, how many images, and the seed.
        test: The clean test set.
        official: Folder of the official arrays, if such exist for this data set.
        official_size: Number of images of the official test set.
        cache: Keep what is generated on disk; small sets are faster made again.
    """
    if config.corruptions == "none":
        return Others(LazyExamples(), (Note("corruptions were left out on request", "shift"),))
    clean = test.subset(torch.arange(len(test))[: config.corruption_limit])
    makers: dict[str, Callable[[], Examples]] = {}
    made_here = []
    folder = functools.cache(functools.partial(_folder, config, clean)) if cache else None
    for kind in corruptions.KINDS:
        path = official / f"{kind}.npy" if official is not None else None
        if path is not None and config.corruptions == "auto" and path.exists():
            data_set = f"{config.name}-c"
            make = functools.partial(_official, clean, path, data_set, official_size)
        else:
            made_here.append(kind)
            make = functools.partial(_generated, clean, kind, config.seed, folder)
        for severity in corruptions.SEVERITIES:
            makers[f"{kind}/{severity}"] = functools.partial(make, severity)
    return Others(LazyExamples(makers), _notes(made_here, len(clean), len(test)))


def _notes(made_here: list[str], corrupted: int, whole: int) -> tuple[Note, ...]:
    notes = []
    if len(made_here) == len(corruptions.KINDS):
        notes.append(
            "corrupted images are generated, not the official arrays (frost from an invented "
            "texture; snow and elastic_transform at strengths of our own)"
        )
    elif made_here:
        notes.append(f"corrupted images are generated for {', '.join(made_here)}")
    if corrupted < whole:
        notes.append(f"corruptions are of the first {corrupted} of {whole} test images")
    return tuple(Note(text, "shift") for text in notes)


def _folder(config: DataConfig, clean: ImageExamples) -> Path:
    """Where the corrupted versions of these images are kept."""
    pixels = clean.pixels[clean.places].numpy()
    name = f"{config.name}-c-{store.key(corruptions.VERSION, config.seed, pixels)}"
    return store.generated(store.data_root(config.root)) / name


def _generated(
    clean: ImageExamples, kind: str, seed: int, folder: Callable[[], Path] | None, severity: int
) -> ImageExamples:
    def generate() -> np.ndarray:
        pixels = clean.pixels[clean.places]
        return corruptions.corrupt(pixels, kind, severity, seed=seed).numpy()

    file = folder and folder() / f"{kind}-{severity}.npy"
    pixels = torch.from_numpy(store.cached(file, generate) if file else generate())
    return image_examples(pixels, clean.labels, clean.normalisation, rows=clean.rows)


def _official(
    clean: ImageExamples, path: Path, data_set: str, size: int, severity: int
) -> ImageExamples:
    images = store.load_array(store.require(path, data_set))
    labels_path = store.require(path.parent / "labels.npy", data_set)
    labels = store.load_array(labels_path)
    expected = (len(corruptions.SEVERITIES) * size, 32, 32, 3)
    if images.dtype != np.uint8 or images.shape != expected:
        came = f"it is {images.dtype} {images.shape}"
        raise store.refuse(path, f"the official array, uint8 {expected}", came)
    # five times the test set in its own order, from the mildest to the worst
    rows = (severity - 1) * size + clean.rows
    if labels.shape != expected[:1] or not np.array_equal(labels[rows], clean.labels):
        came = "its labels are not those of the test set"
        raise store.refuse(labels_path, "the labels of these arrays", came)
    # a view: the rows are read when a batch wants them
    return replace(clean, pixels=torch.from_numpy(images).movedim(-1, 1), places=rows)
