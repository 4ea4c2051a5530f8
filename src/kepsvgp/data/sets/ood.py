"""Images from elsewhere: what a model of CIFAR has never seen and should doubt."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import pictures, store
from kepsvgp.data.benchmark import LazyExamples, Note, Others
from kepsvgp.data.examples import Examples, ImageExamples, Normalisation, image_examples
from kepsvgp.data.sets import cifar, svhn
from kepsvgp.errors import UserError

LSUN_FOLDER = "LSUN_resize"
LSUN_SIZE = 10_000


def for_cifar(root: Path, layout: cifar.Layout) -> Others:
    """SVHN, the other CIFAR and LSUN (resized), all normalised as the training set was."""
    other = cifar.CIFAR100 if layout.name == cifar.CIFAR10.name else cifar.CIFAR10
    normalisation = layout.normalisation
    makers: dict[str, Callable[[], Examples]] = {}
    notes = []
    if (root / svhn.FILE).exists():
        makers["svhn"] = lambda: _classless(svhn.read(root / svhn.FILE)[0], normalisation)
        if (root / svhn.FILE).stat().st_size != svhn.OFFICIAL_BYTES:
            notes.append("out-of-distribution set svhn is not the official file")
    else:
        notes.append(f"out-of-distribution set svhn is missing ({svhn.FILE})")
    path = root / other.folder / other.test_file
    if path.exists():
        makers[other.name] = lambda: _classless(
            cifar.read_file(root, other, other.test_file).pixels, normalisation
        )
    else:
        where = path.relative_to(root)
        notes.append(f"out-of-distribution set {other.name} is missing ({where})")
    if (root / LSUN_FOLDER).is_dir():
        makers["lsun"] = lambda: from_lsun(root, normalisation)
    else:
        notes.append(f"out-of-distribution set lsun is missing ({LSUN_FOLDER}/)")
    return Others(LazyExamples(makers), tuple(Note(text, "ood") for text in notes))


def names_now(config: DataConfig) -> list[str]:
    """The sets of other images that lie beside a CIFAR now; nothing is read."""
    layouts = {layout.name: layout for layout in (cifar.CIFAR10, cifar.CIFAR100)}
    if config.name not in layouts:
        return []
    return list(for_cifar(store.data_root(config.root), layouts[config.name]).sets)


def from_lsun(root: Path, normalisation: Normalisation) -> ImageExamples:
    """The scenes of LSUN (resized to 32×32), as images without a class."""
    folder = store.require(root / LSUN_FOLDER, "lsun")
    paths = pictures.find(folder)
    if not paths:
        raise UserError(f"{folder} must hold the images of LSUN (resized); it has none.")
    size = cifar.SIDE
    listing = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    file = store.generated(root) / f"lsun-{store.key(listing, size)}.npy"
    return _classless(store.cached(file, lambda: pictures.read_all(paths, size)), normalisation)


def _classless(pixels: np.ndarray, normalisation: Normalisation) -> ImageExamples:
    return image_examples(torch.from_numpy(pixels), torch.full((len(pixels),), -1), normalisation)
