"""Image files of any size and format, brought to one size."""

import hashlib
import math
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from kepsvgp.errors import UserError

# other readers of Pillow start programs, as that of EPS does
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# of one image, and of those that are decoded at a time: more takes hundreds of megabytes
MOST_PIXELS = 2**26
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


# what Pillow raises for images that are none
_DAMAGE = (
    *(OSError, UnidentifiedImageError, ValueError, SyntaxError, TypeError, AttributeError),
    *(LookupError, OverflowError, struct.error),
)
# how an image is turned upright, by what it says of itself
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# a file, or what came in another way and says in words what it is
Picture = Path | BinaryIO
# longer images than so many frames side by side are cut before they are enlarged
_MOST_FRAMES = 32
# how many pixels those have that are being decoded
_decoding: list[int] = []
_turn = threading.Condition()


def find(folder: Path) -> list[Path]:
    """All image files under a folder, hidden ones left out, in the order of their names."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def read_all(paths: Sequence[Path], size: int, *, grayscale: bool = False) -> np.ndarray:
    """Images as bytes (N, C, size, size), decoded by as many threads as there are cores."""
    # decoding releases the interpreter's lock
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            images = list(pool.map(lambda path: read(path, size, grayscale=grayscale), paths))
        except UserError as error:
            raise UserError(f"{error} Mend it or take it out of the folder.") from None
    return np.stack(images)


def digests(paths: Sequence[Path]) -> np.ndarray:
    """SHA-256 of each file, as bytes (N, 32)."""

    def digest(path: Path) -> bytes:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = b"".join(pool.map(digest, paths))
    return np.frombuffer(found, np.uint8).reshape(-1, 32)


def read(path: Picture, size: int, *, grayscale: bool = False) -> np.ndarray:
    """One image as bytes (C, size, size): scaled to its shorter side, then cut in the middle."""
    with room_for(path):
        upright = open_upright(path, grayscale=grayscale)
        if upright.size != (size, size):
            upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
    pixels = np.array(upright)
    return pixels[None] if grayscale else pixels.transpose(2, 0, 1)


def read_middle(
    path: Picture,
    size: tuple[int, int],
    scaled: tuple[int, int],
    *,
    filtered: str,
    squash: bool = False,
    grayscale: bool = False,
) -> np.ndarray:
    """The middle of an image as bytes (C, height, width), cut from a larger one.

    Args:
        path: The file.
        size: Height and width of what is cut.
        scaled: Height and width that the image is brought to before; it keeps its proportions
            and covers them.
        filtered: Pillow's name of the filter.
        squash: Bring the image to exactly `scaled`.
        grayscale: One channel, not three.
    """
    with room_for(path):
        upright = open_upright(path, grayscale=grayscale)
        if not squash:
            upright = without_ends(upright, scaled)
        (width, height), (rows, columns) = upright.size, scaled
        if not squash and height * columns <= width * rows:
            columns = width * rows // height
        elif not squash:
            rows = height * columns // width
        resized = np.array(upright.resize((columns, rows), Image.Resampling[filtered.upper()]))
    top, left = (round((have - want) / 2) for have, want in zip((rows, columns), size, strict=True))
    cut = resized[top : top + size[0], left : left + size[1]]
    return cut[None] if grayscale else cut.transpose(2, 0, 1)


def without_ends(image: Image.Image, scaled: tuple[int, int] = (1, 1)) -> Image.Image:
    """The middle of an image that is very long beside a frame of the proportions of `scaled`.

    Enlarged by its shorter side, such an image would not fit into memory.
    """
    (width, height), (rows, columns) = image.size, scaled
    widest = math.ceil(_MOST_FRAMES * height * columns / rows)
    tallest = math.ceil(_MOST_FRAMES * width * rows / columns)
    # as much on either side, so that the middle stays where it is
    left, top = max(0, width - widest) // 2, max(0, height - tallest) // 2
    return image.crop((left, top, width - left, height - top))


def open_upright(path: Picture, *, grayscale: bool = False) -> Image.Image:
    """One image in its own size, decoded, with one channel or three."""
    with _opened(path) as image:
        # a photograph may be stored lying on its side; Pillow's own function also writes the
        # words around it again, and stumbles over those that cameras get wrong
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
        narrow = _in_bytes(image, path)
        upright = narrow if turn is None else narrow.transpose(turn)
        return upright.convert("L" if grayscale else "RGB")


def num_pixels(path: Picture) -> int:
    """What an image says that it has, before it is decoded."""
    with _opened(path) as image:
        return math.prod(image.size)


@contextmanager
def room_for(path: Picture) -> Iterator[None]:
    """Waits until an image and those of other threads have at most `MOST_PIXELS` together."""
    # a pipe cannot be read twice
    can_tell = not isinstance(path, Path) or path.is_file()
    pixels = num_pixels(path) if can_tell else MOST_PIXELS
    with _turn:
        _turn.wait_for(lambda: sum(_decoding) + pixels <= MOST_PIXELS)
        _decoding.append(pixels)
    try:
        yield
    finally:
        with _turn:
            _decoding.remove(pixels)
            _turn.notify_all()


@contextmanager
def _opened(path: Picture) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            _check_size(image, path)
            yield image
    except UserError:
        raise
    except _DAMAGE as error:
        raise UserError(
            f"{path} must be an image ({', '.join(FORMATS)}); reading it failed ({error})."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path, str(error)) from None


def _check_size(image: Image.Image, path: Picture) -> None:
    if math.prod(image.size) > MOST_PIXELS:
        raise _too_large(path, f"it has {image.width} × {image.height}")


def _too_large(path: Picture, came: str) -> UserError:
    return UserError(
        f"{path} must be an image of at most {MOST_PIXELS} pixels; {came}. Scale it down."
    )


def _in_bytes(image: Image.Image, path: Picture) -> Image.Image:
    """The image with 8 bits a value; Pillow's own conversion would clip larger numbers."""
    # so Pillow opens a PGM of 16 bits and, before its version 11, a PNG
    is_wide = image.mode == "I" and image.format in ("PPM", "PNG")
    if is_wide or image.mode.startswith("I;16"):
        # the upper byte, as Pillow itself takes of colours with 16 bits
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UserError(
            f"{path} must be an image with 8 or 16 bits a value; its mode is {image.mode}, whose "
            "values have no known range. Save it as 8 or 16 bit."
        )
    return image
