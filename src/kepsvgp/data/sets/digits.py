"""The 1,797 handwritten digits that come with scikit-learn: nothing to download.

Images are 8×8 with one channel. Outside the distribution are patches of scikit-learn's two
sample photographs, brought to the same size and to grey.
"""

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.augment import CropFlip
from kepsvgp.data.benchmark import Benchmark, LazyExamples, random_split
from kepsvgp.data.examples import ImageExamples, Normalisation, image_examples
from kepsvgp.data.shifts.corrupted import corrupted_sets

SIDE = 8
# over all digits: a property of the set, so that every split and subset agrees
NORMALISATION = Normalisation((0.3053,), (0.3759,))


def load(config: DataConfig) -> Benchmark:
    """Digits, split 60/20/20 at random by the seed."""
    # slow to import, and a plan needs no digit
    from sklearn.datasets import load_digits

    intensities, targets = load_digits(return_X_y=True)
    # intensities are 0 … 16
    pixels = np.rint(intensities * (255 / 16)).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    labels = torch.from_numpy(targets).long()
    everything = image_examples(torch.from_numpy(pixels), labels, NORMALISATION)
    fifth = len(labels) // 5
    split = random_split(len(labels), val=fifth, test=fifth, seed=config.seed).limited(config)
    test = everything.subset(split.test)
    corrupted = corrupted_sets(config, test, cache=False)
    return Benchmark(
        "digits",
        "image",
        tuple("0123456789"),
        *(everything.subset(split.train), everything.subset(split.val), test),
        config.seed,
        shifts=corrupted.sets,
        notes=corrupted.notes,
        ood=LazyExamples({"photographs": photograph_patches}),
        # a mirrored digit is another sign: shifts alone
        augment=CropFlip(padding=1, flip=False),
    )


def photograph_patches() -> ImageExamples:
    """Patches of the two photographs at three scales, as grey 8×8 images without a class."""
    from sklearn.datasets import load_sample_images

    patches = [
        patch
        for photograph in load_sample_images().images
        for scale in (4, 8, 16)
        for patch in _patches(photograph, scale)
    ]
    pixels = torch.from_numpy(np.stack(patches)[:, None])
    return image_examples(pixels, torch.full((len(pixels),), -1), NORMALISATION)


def _patches(photograph: np.ndarray, scale: int) -> UInt8[np.ndarray, "patch height width"]:
    """The grey photograph at 1/scale of its size, cut into tiles that do not overlap."""
    grey = Image.fromarray(photograph).convert("L")
    width, height = (length // scale // SIDE for length in grey.size)
    small = grey.resize((width * SIDE, height * SIDE), Image.Resampling.BOX)
    tiles = np.asarray(small).reshape(height, SIDE, width, SIDE).swapaxes(1, 2)
    return tiles.reshape(-1, SIDE, SIDE)
