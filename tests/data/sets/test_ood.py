from pathlib import Path

import numpy as np
import pytest
from datafiles import TINY10, TINY100, write_python, write_svhn
from PIL import Image
from scipy.io import savemat

from kepsvgp.data.benchmark import Note
from kepsvgp.data.sets import cifar, ood, svhn
from kepsvgp.errors import UserError


def test_svhn_is_read_in_the_order_of_its_axes(tmp_path: Path) -> None:
    expected = write_svhn(tmp_path / svhn.FILE, 12)

    pixels, labels = svhn.read(tmp_path / svhn.FILE)

    assert (pixels == expected).all()
    # the file writes the digit 0 as 10
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]


def test_other_files_in_the_place_of_svhn_are_refused(tmp_path: Path) -> None:
    path = tmp_path / svhn.FILE
    write_svhn(path, 12)
    whole = path.read_bytes()
    lengths = (0, 1, 100, 128, 140, len(whole) // 2, len(whole) - 60)
    for content in (*(whole[:length] for length in lengths), b"\x89HDF\r\n\x1a\n" + bytes(600)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"test_32x32.mat must be"):
            svhn.read(path)
    images = np.zeros((32, 32, 3, 2), np.uint8)
    for arrays, message in (
        ({"X": images.astype(float), "y": np.array([[1], [2]])}, "must be uint8"),
        ({"Z": np.zeros(3)}, "no arrays X and y"),
        ({"X": images, "y": np.array([[1], [11]])}, "one label of 1 … 10"),
    ):
        savemat(path, arrays)
        with pytest.raises(UserError, match=message):
            svhn.read(path)


def test_lsun_folder_is_read_once_and_then_mapped(tmp_path: Path) -> None:
    folder = tmp_path / "LSUN_resize" / "LSUN_resize"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number}.png")
    Image.fromarray(pictures[0]).resize((40, 36)).save(folder / "other_size.jpg")
    (folder / "._0.png").write_bytes(b"not an image, left by another system")

    normalisation = TINY10.normalisation
    first = ood.from_lsun(tmp_path, normalisation)
    again = ood.from_lsun(tmp_path, normalisation)

    assert len(first) == 4
    assert (first.raw(1) == pictures[1]).all()
    assert (again.pixels == first.pixels).all()
    assert len(list((tmp_path / "generated").rglob("lsun-*.npy"))) == 1
    # a changed folder is another set
    (folder / "other_size.jpg").unlink()
    assert len(ood.from_lsun(tmp_path, normalisation)) == 3
    (folder / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    with pytest.raises(UserError, match=r"bad.jpg must be an image"):
        ood.from_lsun(tmp_path, normalisation)


def test_sets_that_are_not_there_are_noted(tmp_path: Path) -> None:
    nothing = ood.for_cifar(tmp_path, TINY10)
    assert not nothing.sets
    assert len(nothing.notes) == 3

    write_python(tmp_path, TINY10)
    write_svhn(tmp_path / svhn.FILE)
    some = ood.for_cifar(tmp_path, TINY100)
    assert list(some.sets) == ["svhn", "cifar10"]
    assert some.notes == (
        Note("out-of-distribution set svhn is not the official file", "ood"),
        Note("out-of-distribution set lsun is missing (LSUN_resize/)", "ood"),
    )
    svhn_digits = some.sets["svhn"]
    assert (svhn_digits.labels == -1).all()
    assert svhn_digits.normalisation == cifar.CIFAR100.normalisation
