"""The fifteen common corruptions at five strengths, on whole batches of images.

Images are floats in [0, 1]. The strengths of thirteen kinds are those that Hendrycks and
Dietterich used for CIFAR; those of snow and elastic_transform are ours, chosen so that a
trained network suffers as the published tables have it: more than from brightness, less than
from zoom_blur and frost. Frost has no photographs to draw from and uses an invented texture.
What comes out is of the same kind as CIFAR-10-C, not the same bytes: it is called generated.

Lengths in pixels are meant for 32×32 and scale with the side. For smaller images, as digits of
8×8, blurs and flakes shrink to a half at most and a defocused disk not at all, since less than a
pixel would change nothing; and glass moves only half of the pixels.

References:
    Hendrycks and Dietterich, 2019, arXiv:1903.12261.
"""

import io
import math
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from kepsvgp.data.shifts import filters, textures

# part of the name of every cached file: raise it whenever the images change
VERSION = 2
SEVERITIES = (1, 2, 3, 4, 5)
# images that are corrupted together, with numbers of their own: small enough for the cache
CHUNK = 500
# numbers that a corruption may hold at a time beyond the images themselves
MOST_NUMBERS = 1 << 26

Images = Float[Tensor, "batch channel height width"]

STRENGTHS: dict[str, tuple] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),
    "snow": (
        (0.006, 0.5, 0.96),
        (0.009, 0.6, 0.94),
        (0.012, 0.8, 0.90),
        (0.014, 0.9, 0.88),
        (0.017, 1.0, 0.85),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": ((1.5, 0.3), (2, 0.5), (2.5, 0.7), (3, 0.9), (3.5, 1.1)),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
}
KINDS = tuple(STRENGTHS)


def corrupt(
    pixels: UInt8[Tensor, "batch channel height width"], kind: str, severity: int, *, seed: int
) -> UInt8[Tensor, "batch channel height width"]:
    """These images, corrupted; the same seed gives the same images on every run."""
    if kind not in STRENGTHS or severity not in SEVERITIES:
        raise ValueError(
            f"a corruption must be one of {', '.join(KINDS)} at severity 1 … 5; "
            f"got {kind!r} at {severity!r}."
        )
    strength = STRENGTHS[kind][severity - 1]
    parameters = strength if isinstance(strength, tuple) else (strength,)

    def corrupt_chunk(number: int, chunk: Tensor) -> Tensor:
        name = f"{VERSION}/{seed}/{kind}/{severity}/{number}".encode()
        generator = torch.Generator().manual_seed(zlib.crc32(name))
        result = _FUNCTIONS[kind](chunk.to(torch.float32) / 255, generator, *parameters)
        return (result.clamp(0, 1) * 255).round().to(torch.uint8)

    chunks = pixels.split(CHUNK)
    # torch and Pillow release the interpreter's lock
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return torch.cat(list(pool.map(corrupt_chunk, range(len(chunks)), chunks)))


def length_scale(x: Images, *, least: float = 0.5) -> float:
    """Factor for lengths in pixels: 1 at 32×32, in proportion to the side, not below `least`."""
    return max(min(x.shape[-2:]) / 32, least)


def gaussian_noise(x: Images, generator: torch.Generator, scale: float) -> Images:
    """Gaussian noise: x + scale · ε."""
    return x + scale * torch.randn(x.shape, generator=generator)


def shot_noise(x: Images, generator: torch.Generator, photons: float) -> Images:
    """Poisson(x · photons) / photons: the noise of counting light."""
    return torch.poisson(x * photons, generator=generator) / photons


def impulse_noise(x: Images, generator: torch.Generator, amount: float) -> Images:
    """A share `amount` of the values set to 0 or 1, as often the one as the other."""
    u = torch.rand(x.shape, generator=generator)
    return torch.where(u < amount / 2, 0.0, torch.where(u > 1 - amount / 2, 1.0, x))


def defocus_blur(x: Images, _: torch.Generator, radius: float, alias: float) -> Images:
    """Mean over a disk whose rim is softened by a Gaussian."""
    radius = radius * length_scale(x, least=1.0)
    reach = math.floor(radius)
    square = torch.arange(-reach, reach + 1).square()
    disk = (square[:, None] + square <= radius**2).float()
    rim = filters.gaussian_weights(alias, reach=1)
    soft = filters.convolve_full(disk / disk.sum(), rim[:, None] * rim)
    return filters.convolve(x, soft)


def glass_blur(
    x: Images, generator: torch.Generator, sigma: float, delta: int, iterations: int
) -> Images:
    """Each pixel replaced by a near one, `iterations` times, between two Gaussian blurs.

    As in the published images, a pixel moves by −delta … delta − 1 each way and the rim stays.
    """
    share = min(1.0, length_scale(x))
    x = filters.gaussian_blur(x, sigma)
    _, channels, height, width = x.shape
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[delta : height - delta, delta : width - delta] = True
    places = torch.arange(height * width).view(height, width)
    for _ in range(iterations):
        shape = (len(x), 2, height, width)
        down, right = torch.randint(-delta, delta, shape, generator=generator).unbind(1)
        moved = torch.rand(down.shape, generator=generator) < share
        source = places + torch.where(inside & moved, down * width + right, 0)
        source = source.flatten(1).unsqueeze(1).expand(-1, channels, -1)
        x = x.flatten(2).gather(2, source).view_as(x)
    return filters.gaussian_blur(x, sigma)


def motion_blur(x: Images, generator: torch.Generator, radius: float, sigma: float) -> Images:
    """One-sided Gaussian trail along a line, with an angle within ±45° for each image."""
    angle = (torch.rand(len(x), generator=generator) - 0.5) * (math.pi / 2)
    scale = length_scale(x)
    return filters.trail(x, angle, radius=radius * scale, sigma=sigma * scale)


def zoom_blur(x: Images, _: torch.Generator, furthest: float) -> Images:
    """Mean of the image and of its enlargements 1, 1.01, … up to `furthest`, exclusive."""
    factors = torch.arange(1, furthest - 1e-6, 0.01, dtype=torch.float64)
    rows, columns = (filters.zoom_matrices(side, factors) for side in x.shape[-2:])
    # Σ_z A_z x B_zᵀ, over a stack of small matrices; every image is held once for each of them
    together = max(1, MOST_NUMBERS // (len(factors) * x[0].numel()))
    parts = (torch.einsum("zij,bcjk,zlk->bcil", rows, part, columns) for part in x.split(together))
    return (x + torch.cat(list(parts))) / (len(factors) + 1)


def snow(
    x: Images, generator: torch.Generator, flakes: float, length: float, clarity: float
) -> Images:
    """A whitened image with flakes that fall in streaks.

    Args:
        x: The images.
        generator: Source of the flakes.
        flakes: Share of the pixels on which a flake starts.
        length: Length of a streak, in pixels.
        clarity: Weight of the image against its whitened self.
    """
    batch, _, height, width = x.shape
    scale = length_scale(x)
    u = torch.rand(batch, 1, height, width, generator=generator)
    bright = 0.5 + torch.rand(batch, 1, height, width, generator=generator)
    angle = (torch.rand(batch, generator=generator) / 2 + 0.25) * math.pi
    layer = torch.where(u < flakes, bright, 0.0)
    streaks = filters.trail(layer, angle, radius=2 * length * scale, sigma=length * scale)
    grey = x.mean(dim=1, keepdim=True)
    white = torch.maximum(x, grey * 1.5 + 0.5)
    # a trail spreads a flake over its length: its brightness is given back
    return clarity * x + (1 - clarity) * white.clamp(max=1) + streaks * length * scale


def frost(x: Images, generator: torch.Generator, image: float, ice: float) -> Images:
    """Weighted sum of the image and a piece of an invented texture of ice crystals."""
    _, channels, height, width = x.shape
    texture = textures.frost(len(x), height, width, generator)
    if channels == 1:
        texture = texture.mean(dim=1, keepdim=True)
    return image * x + ice * texture


def fog(x: Images, generator: torch.Generator, strength: float, decay: float) -> Images:
    """A fractal cloud added, and the range of the image kept."""
    _, _, height, width = x.shape
    cloud = textures.plasma(len(x), height, width, decay, generator)
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + strength * cloud) * brightest / (brightest + strength)


def brightness(x: Images, _: torch.Generator, amount: float) -> Images:
    """The value of hue-saturation-value raised by `amount`, hue and saturation kept."""
    value = x.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp(max=1)
    # black has no hue: it turns grey
    return torch.where(value > 0, x * raised / value.clamp(min=1e-8), raised)


def contrast(x: Images, _: torch.Generator, factor: float) -> Images:
    """Each channel drawn towards its mean."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * factor + mean


def elastic_transform(
    x: Images, generator: torch.Generator, jitter: float, wobble: float
) -> Images:
    """A random affine map and a smooth random field of displacements.

    Args:
        x: The images.
        generator: Source of the displacements.
        jitter: How far the affine map moves a corner at most, in pixels.
        wobble: Standard deviation of the field of displacements, in pixels.
    """
    batch, _, height, width = x.shape
    scale = length_scale(x, least=0.0)
    corners = (torch.rand(batch, 2, 3, generator=generator) * 2 - 1) * jitter * scale
    noise = torch.randn(batch, 2, height, width, generator=generator)
    field = filters.gaussian_blur(noise, 2.5 * scale)
    field = field / field.std(dim=(2, 3), keepdim=True) * wobble * scale
    return filters.displace(x, filters.affine_field(corners, height, width) + field)


def pixelate(x: Images, _: torch.Generator, factor: float) -> Images:
    """The image made smaller with a box filter, and larger again."""
    rows, columns = (filters.box_matrix(side, int(side * factor)) for side in x.shape[-2:])
    return rows @ x @ columns.mT


def jpeg_compression(x: Images, _: torch.Generator, quality: int) -> Images:
    """The image after JPEG at this quality."""
    pixels = (x * 255).round().to(torch.uint8).movedim(1, -1).numpy()
    gray = pixels.shape[-1] == 1
    result = np.empty_like(pixels)
    for source, target in zip(pixels, result, strict=True):
        with io.BytesIO() as buffer:
            Image.fromarray(source[..., 0] if gray else source).save(
                buffer, "jpeg", quality=quality
            )
            with Image.open(buffer) as image:
                target[...] = np.asarray(image)[..., None] if gray else np.asarray(image)
    return torch.from_numpy(result).movedim(-1, 1).to(torch.float32) / 255


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        *(gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur),
        *(zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate),
        jpeg_compression,
    )
}
