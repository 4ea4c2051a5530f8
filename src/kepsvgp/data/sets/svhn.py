"""Street View House Numbers, the cropped digits in the publisher's MATLAB file."""

import zlib
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from kepsvgp.data import store

FILE = "svhn/test_32x32.mat"
OFFICIAL_SIZE = 26_032
OFFICIAL_BYTES = 64_275_384


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images as bytes (N, 3, 32, 32) and labels 0 … 9, where the file has 10 for the zero."""
    expected = "SVHN's test_32x32.mat"
    damage = (MatReadError, ValueError, TypeError, LookupError, OSError, zlib.error, OverflowError)
    try:
        content = loadmat(store.require(path, "svhn"), variable_names=("X", "y"))
    except (*damage, NotImplementedError, MemoryError) as error:
        raise store.refuse(path, expected, f"reading it failed ({error})") from None
    pixels, labels = content.get("X"), content.get("y")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, np.ndarray):
        raise store.refuse(path, expected, "it has no arrays X and y")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        came = f"{pixels.dtype} {pixels.shape}"
        raise store.refuse(path, expected, f"its X must be uint8 (32, 32, 3, N) and is {came}")
    labels = labels.reshape(-1).astype(np.int64)
    if len(labels) != pixels.shape[3] or not np.isin(labels, range(1, 11)).all():
        raise store.refuse(path, expected, "its y must be one label of 1 … 10 for each image")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10
