import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from kepsvgp.data import pictures
from kepsvgp.errors import UserError

# all steps of 16 bits, coarsely
RAMP = np.arange(0, 65_536, 257, dtype=np.uint16).reshape(8, 32)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_image_of_16_bits_is_scaled_to_8(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(RAMP).save(path)

    gray, colour = (pictures.open_upright(path, grayscale=grayscale) for grayscale in (True, False))

    expected = np.arange(256, dtype=np.uint8).reshape(8, 32)
    assert np.array_equal(np.array(gray), expected)
    assert np.array_equal(np.array(colour), np.stack([expected] * 3, axis=-1))


def test_image_of_16_bits_is_scaled_however_it_is_stored(tmp_path: Path) -> None:
    """In the order of other machines, and turned: a PGM cannot say so, a PNG of 16 bits can."""
    Image.frombytes("I;16B", (32, 8), RAMP.astype(">u2").tobytes()).save(tmp_path / "a.tif")
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = 3
    Image.fromarray(RAMP).save(tmp_path / "a.png", exif=about)

    with Image.open(tmp_path / "a.tif") as image:
        assert image.mode == "I;16B"
    for name, expected in (("a.tif", RAMP), ("a.png", RAMP[::-1, ::-1])):
        found = np.array(pictures.open_upright(tmp_path / name, grayscale=True))
        assert np.array_equal(found, expected >> 8)


@pytest.mark.parametrize(("kind", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_image_without_a_known_range_is_refused(kind, mode: str, tmp_path: Path) -> None:
    Image.fromarray(RAMP.astype(kind)).save(tmp_path / "a.tif")

    with pytest.raises(UserError, match=rf"a\.tif must be .* its mode is {mode},.* 8 or 16 bit"):
        pictures.read(tmp_path / "a.tif", 8)


def test_images_in_hidden_folders_are_left_out(tmp_path: Path) -> None:
    # the folder itself may lie in a hidden one
    root = tmp_path / ".cache" / "images"
    for name in ("a.png", "b/c.png", ".d.png", ".ipynb_checkpoints/e.png", "b/.f/g/h.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()

    assert pictures.find(root) == [root / "a.png", root / "b/c.png"]


def middle_of_the_whole(image: Image.Image, side: int, scaled: int) -> np.ndarray:
    """The middle of the image after all of it was brought to its size."""
    width, height = (length * scaled // min(image.size) for length in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    resized = np.array(image.resize((width, height), Image.Resampling.BICUBIC))
    return resized[top : top + side, left : left + side].transpose(2, 0, 1)


@pytest.mark.parametrize("size", [(30, 41), (41, 30), (64, 64), (200, 9), (7, 220)])
def test_middle_of_an_image_is_that_of_the_whole(size: tuple[int, int], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")

    found = pictures.read_middle(tmp_path / "a.png", (16, 16), (18, 18), filtered="bicubic")

    assert np.array_equal(found, middle_of_the_whole(Image.fromarray(noise), 16, 18))


@pytest.mark.parametrize("size", [(3, 301), (301, 3), (2, 1000), (61, 5001)])
def test_middle_of_a_long_image_is_nearly_that_of_the_whole(
    size: tuple[int, int], tmp_path: Path
) -> None:
    across = np.linspace(0, 20, size[0])[:, None], np.linspace(0, 20, size[1])[None]
    smooth = np.stack([127 + 120 * np.sin(across[0] + across[1] + k) for k in range(3)], axis=-1)
    image = Image.fromarray(smooth.astype(np.uint8))
    image.save(tmp_path / "a.png")

    found = pictures.read_middle(tmp_path / "a.png", (16, 16), (18, 18), filtered="bicubic")

    expected = middle_of_the_whole(image, 16, 18)
    # the number of pixels that it is enlarged to is rounded at another length
    assert np.abs(found.astype(int) - expected).max() <= 2


def test_thin_image_is_cut_before_it_is_enlarged(tmp_path: Path, monkeypatch) -> None:
    whole = Image.Image.resize

    def small(image: Image.Image, size: tuple[int, int], *arguments: Any) -> Image.Image:
        assert math.prod(size) < 10_000_000
        return whole(image, size, *arguments)

    monkeypatch.setattr(Image.Image, "resize", small)
    for size in ((60_000, 1), (1, 60_000)):
        Image.new("RGB", size, (200, 10, 30)).save(tmp_path / "a.png")

        found = pictures.read_middle(tmp_path / "a.png", (224, 224), (256, 256), filtered="bicubic")

        assert (found == np.array([200, 10, 30])[:, None, None]).all()
        assert found.shape == (3, 224, 224)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "TGA", "PCX", "SGI"])
def test_image_of_another_format_under_a_known_name_is_refused(kind: str, tmp_path: Path) -> None:
    """Pillow goes by the content, and reads some formats with programs of the system."""
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png", kind)

    with pytest.raises(UserError, match=r"a\.png must be an image \(PNG, .* reading it failed"):
        pictures.open_upright(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", pictures.SUFFIXES)
def test_every_listed_format_is_read(suffix: str, tmp_path: Path) -> None:
    mode = "L" if suffix == ".pgm" else "RGB"
    Image.new(mode, (6, 4), "white").save(tmp_path / f"a{suffix}")

    assert pictures.read(tmp_path / f"a{suffix}", 4).min() == 255


@pytest.mark.parametrize("side", [9_000, 10_000, 20_000])
def test_image_of_too_many_pixels_is_refused_before_it_is_decoded(
    side: int, tmp_path: Path, monkeypatch
) -> None:
    Image.new("1", (side, side)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))

    with pytest.raises(UserError, match=r"a\.png must be an image of at most 67108864 pixels"):
        pictures.open_upright(tmp_path / "a.png")


@pytest.mark.parametrize(("side", "together"), [(8, 4), (50, 4), (60, 2), (99, 1)])
def test_images_that_are_decoded_together_have_the_pixels_of_one(
    side: int, together: int, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS", 10_000)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    whole, decoding, most = pictures.open_upright, [], []
    # as many as may come at the same time also do
    barrier = threading.Barrier(together)

    def watched(path: Path, *, grayscale: bool) -> Image.Image:
        decoding.append(path)
        most.append(len(decoding))
        barrier.wait(60)
        time.sleep(0.01)
        decoding.remove(path)
        return whole(path, grayscale=grayscale)

    monkeypatch.setattr(pictures, "open_upright", watched)
    paths = [tmp_path / f"{number}.png" for number in range(8)]
    for number, path in enumerate(paths):
        Image.new("RGB", (side, side), (number, 0, 0)).save(path)

    assert pictures.read_all(paths, 4)[:, 0, 0, 0].tolist() == list(range(8))
    assert max(most) == together


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Pillow's own
def test_image_is_read_from_a_pipe(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (7, 0, 0)).save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / "a.png").read_bytes()
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()

    assert pictures.read(tmp_path / "pipe", 4)[0, 0, 0] == 7
    writer.join()
