"""Random textures for the corruptions: a fractal cloud for fog, crystals for frost."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def plasma(
    batch: int, height: int, width: int, decay: float, generator: torch.Generator
) -> Float[Tensor, "batch 1 height width"]:
    """Fractal clouds in [0, 1] by the diamond-square algorithm, on a torus.

    The midpoints of squares, then of edges, are the mean of their neighbours plus noise, whose
    amplitude falls by `decay`² from one level to the next: more is smoother.
    """
    side = 2 ** math.ceil(math.log2(max(height, width, 2)))
    cloud = torch.zeros(batch, side, side)
    amplitude, step = 100.0, side

    def noisy(total: Tensor) -> Tensor:
        noise = torch.rand(total.shape, generator=generator) * 2 - 1
        return total / 4 + amplitude**2 * noise

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        across = corners + corners.roll(-1, 1)
        cloud[:, half::step, half::step] = noisy(across + across.roll(-1, 2))
        middles = cloud[:, half::step, half::step]
        horizontal = corners + corners.roll(-1, 2)
        cloud[:, ::step, half::step] = noisy(middles + middles.roll(1, 1) + horizontal)
        vertical = corners + corners.roll(-1, 1)
        cloud[:, half::step, ::step] = noisy(middles + middles.roll(1, 2) + vertical)
        step, amplitude = half, amplitude / decay
    cloud = cloud - cloud.amin(dim=(1, 2), keepdim=True)
    cloud = cloud / cloud.amax(dim=(1, 2), keepdim=True)
    return cloud[:, None, :height, :width]


def frost(
    batch: int, height: int, width: int, generator: torch.Generator
) -> Float[Tensor, "batch 3 height width"]:
    """Ice on a pane: pale blue crystals with bright needles, dark in between.

    An invention that stands for photographs of frost: ridges of two fractal fields, one smooth
    and one fine, give edges of crystals; straight waves of random directions give needles.
    """
    smooth = plasma(batch, height, width, 2.0, generator)
    fine = plasma(batch, height, width, 1.4, generator)
    # 1 − |2u − 1| is brightest where the field crosses its middle: a thin line
    line = 1 - (2 * smooth - 1).abs()
    ridges = line * line * line
    down = torch.linspace(0, 1, height)[:, None]
    right = torch.linspace(0, 1, width)
    needles = torch.zeros(batch, 1, height, width)
    for _ in range(4):
        angle, phase, pitch = torch.rand(3, batch, 1, 1, 1, generator=generator)
        along = right * (angle * math.pi).cos() + down * (angle * math.pi).sin()
        wave = (2 * math.pi * ((4 + 8 * pitch) * along + phase + smooth)).cos()
        needles = torch.maximum(needles, wave.clamp_(min=0).square_().square_())
    ice = (0.25 + 0.4 * ridges + 0.35 * needles * fine + 0.3 * fine).clamp(0, 1)
    tint = torch.tensor([0.86, 0.95, 1.0]).view(3, 1, 1)
    return ice * tint
