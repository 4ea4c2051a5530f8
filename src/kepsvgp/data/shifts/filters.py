"""Linear filters and resampling of batches of images, for the corruptions.

Everything here is linear in the image, and works on `(batch, channel, height, width)`.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "batch channel height width"]


def gaussian_weights(sigma: float, *, reach: int) -> Float[Tensor, " tap"]:
    """exp(−i² / 2σ²) for i = −reach … reach, of sum 1."""
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / sigma).square())
    return (weights / weights.sum()).float()


def gaussian_blur(x: Images, sigma: float) -> Images:
    """Gaussian blur, cut off at four standard deviations, edges repeated."""
    reach = int(4 * sigma + 0.5)
    if reach == 0:
        return x
    weights = gaussian_weights(sigma, reach=reach)
    return convolve(convolve(x, weights[:, None]), weights[None])


def convolve(x: Images, kernel: Float[Tensor, "rows columns"]) -> Images:
    """Each channel convolved with one kernel of odd size, edges repeated."""
    rows, columns = (size // 2 for size in kernel.shape)
    _, _, height, width = x.shape
    padded = F.pad(x, (columns, columns, rows, rows), mode="replicate")
    result = torch.zeros_like(x)
    # a sum of shifted images: for one channel and few taps this beats conv2d by far
    for down, right in kernel.nonzero().tolist():
        piece = padded[:, :, down : down + height, right : right + width]
        result.add_(piece, alpha=float(kernel[down, right]))
    return result


def convolve_full(
    image: Float[Tensor, "rows columns"], kernel: Float[Tensor, "height width"]
) -> Float[Tensor, "all_rows all_columns"]:
    """A small image convolved with a symmetric kernel, grown so that nothing is lost."""
    rows, columns = (size - 1 for size in kernel.shape)
    padded = F.pad(image, (columns, columns, rows, rows))
    return F.conv2d(padded[None, None], kernel[None, None])[0, 0]


def trail(x: Images, angle: Float[Tensor, " batch"], *, radius: float, sigma: float) -> Images:
    """One-sided Gaussian blur along a line, at an angle for each image, edges repeated."""
    _, channels, height, width = x.shape
    # what lies beyond four standard deviations cannot be seen
    steps = min(2 * math.ceil(radius), math.ceil(4 * sigma)) + 1
    weights = torch.exp(-0.5 * (torch.arange(steps) / sigma).square())
    weights = weights / weights.sum()
    result = torch.zeros_like(x)
    for step, weight in enumerate(weights.tolist()):
        down = (step * angle.sin()).round().long()
        right = (step * angle.cos()).round().long()
        rows = (torch.arange(height) + down[:, None]).clamp(0, height - 1)
        columns = (torch.arange(width) + right[:, None]).clamp(0, width - 1)
        places = rows[:, :, None] * width + columns[:, None, :]
        places = places.flatten(1).unsqueeze(1).expand(-1, channels, -1)
        result += weight * x.flatten(2).gather(2, places).view_as(x)
    return result


def zoom_matrices(
    side: int, factors: Float[Tensor, " zoom"]
) -> Float[Tensor, "zoom side same_side"]:
    """For each factor, the matrix that enlarges a line about its middle, linearly."""
    middle = (side - 1) / 2
    target = torch.arange(side, dtype=torch.float64)
    source = (target - middle) / factors[:, None] + middle
    # weight of sample j at position s: max(0, 1 − |s − j|)
    return (1 - (source[..., None] - target).abs()).clamp(min=0).float()


def box_matrix(side: int, small: int) -> Float[Tensor, "side same_side"]:
    """The matrix that makes a line of `side` samples `small` with a box filter, and back."""
    lines = Image.fromarray(np.eye(side, dtype=np.float32))
    box = Image.Resampling.BOX
    there_and_back = lines.resize((side, small), box).resize((side, side), box)
    return torch.from_numpy(np.array(there_and_back))


def affine_field(
    corners: Float[Tensor, "batch 2 3"], height: int, width: int
) -> Float[Tensor, "batch 2 height width"]:
    """Displacements of the affine map that moves three corners by so much (right, down)."""
    down = torch.linspace(0, 1, height)[:, None]
    right = torch.linspace(0, 1, width)
    top_left, top_right, bottom_left = (corners[:, :, i, None, None] for i in range(3))
    return top_left + (top_right - top_left) * right + (bottom_left - top_left) * down


def displace(x: Images, field: Float[Tensor, "batch 2 height width"]) -> Images:
    """The image read at each pixel plus its displacement (right, down), mirrored at edges."""
    _, _, height, width = x.shape
    columns = torch.arange(width) + field[:, 0]
    rows = torch.arange(height)[:, None] + field[:, 1]
    # pixel centres at −1 … 1 from edge to edge of the image
    grid = torch.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
