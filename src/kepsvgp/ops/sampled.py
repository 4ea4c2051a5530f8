"""Samples that are maps of the same scores: O_s = M A_s + b, the heads side by side.

With the heads' maps on the diagonal of one matrix, tokens come out in their order: some products
with zero cost less than moving S outputs.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Factors(NamedTuple):
    """What is multiplied: M, A_s and b, of all heads, and A_s of each head alone."""

    scores: Float[Tensor, "batch token inner"]
    maps: Float[Tensor, "sample inner dim"]
    bias: Float[Tensor, "*token dim"]
    of_heads: Float[Tensor, "sample head rank width"]


def factors(
    merged: Float[Tensor, "batch head token rank"],
    readouts: Float[Tensor, "sample head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Factors:
    """The factors of all heads, from those of each."""
    # (head·rank × head·width) for every sample
    readouts = readouts.to(merged.dtype)
    diagonal = torch.diag_embed(torch.einsum("s h r w -> s r w h", readouts))
    maps = torch.einsum("s r w h k -> s h r k w", diagonal).flatten(3).flatten(1, 2)
    of_heads = bias.to(merged.dtype).unsqueeze(-2).expand(*bias.shape[:-1], readouts.shape[1], -1)
    scores = merged.transpose(1, 2).flatten(2)
    return Factors(scores, maps, of_heads.flatten(-2), readouts)


def read_out(
    merged: Float[Tensor, "batch head token rank"],
    readouts: Float[Tensor, "sample head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "sample batch token dim"]:
    """The samples themselves."""
    scores, maps, bias, _ = factors(merged, readouts, bias)
    # b of one row is a row of the maps; of a row for each token, the tokens bring them along
    if bias.ndim == 1:
        scores = torch.nn.functional.pad(scores, (0, 1), value=1.0)
        maps = torch.cat([maps, bias.expand(maps.shape[0], 1, -1)], dim=1)
    of_each = scores.flatten(0, 1).expand(maps.shape[0], -1, -1)
    if bias.ndim == 1:
        out = torch.bmm(of_each, maps)
    else:
        out = torch.baddbmm(bias.repeat(merged.shape[0], 1), of_each, maps)
    return out.unflatten(1, scores.shape[:2])
