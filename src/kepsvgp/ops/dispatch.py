"""The formulas that layers call: by a fast kernel where it serves, else as `maths` has them.

| formula | plainly | fast kernel |
|---|---|---|
| scores S = Φ W | `ksvd.project` | `blocked.Scores` |
| dual scores S = Φ (Φ′ᵀ H′ / n) | `ksvd.dual_directions` first | `blocked_dual.DualScores` |
| outputs O = M G + b | `svgp.read_out` | `blocked.ReadOut`; `sampled` where draws are samples |
| anything, sequence by sequence | all at once | `slices.over_sequences` |
| dropout | `torch.nn.Dropout` | `dropout` |
| the MLP of a block's samples, their mean over tokens | `models.blocks` | `pooling` |

The numbers are the same up to rounding. Plain formulas serve other devices, half precision,
function transforms and `torch.compile`, which needs no help.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.maths import ksvd, svgp
from kepsvgp.ops import private, sampled
from kepsvgp.ops.blocked import ReadOut, Scores
from kepsvgp.ops.blocked_dual import DualScores
from kepsvgp.ops.slices import has_whole_sequences, over_sequences


def is_eager(t: Tensor) -> bool:
    """Whether `t` is an eager tensor in single or double precision, untouched by transforms."""
    return (
        not torch.compiler.is_compiling()
        and t.dtype in (torch.float32, torch.float64)
        and not is_autocast(t.device.type)
        and not private.is_transformed()
    )


def is_autocast(kind: str) -> bool:
    """Whether there is autocast on devices of a kind now."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def without_autocast(kind: str) -> AbstractContextManager[Any]:
    """Within the block, no autocast on devices of a kind, if they have any."""
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def is_fast(*inputs: Tensor) -> bool:
    """Whether kernels serve these: eager tensors of one type, on a CPU."""
    first = inputs[0]
    return first.is_cpu and is_eager(first) and all(t.dtype == first.dtype for t in inputs)


class Projected(NamedTuple):
    """Projection scores, tokens last, and their energy where it was asked for."""

    scores: Float[Tensor, "batch 2 head rank token"]
    """Those of the queries, and those of the keys."""
    energy: Float[Tensor, "pair rank"] | None
    """Σ S² over sequences and tokens."""


def project(
    t: Float[Tensor, "batch pair token feature"],
    directions: Float[Tensor, "*batch pair feature rank"],
    mask: Bool[Tensor, "batch token"] | None = None,
    *,
    with_energy: bool = False,
) -> Projected:
    """Projection scores (φ(t) W)ᵀ, zero at padding."""
    if is_fast(t, directions):
        of_each = directions.expand(len(t), *directions.shape[-3:])
        return Projected(*Scores.apply(t, of_each, mask, with_energy))
    scores = ksvd.project(t, directions, mask)
    energy = ksvd.sum_of_squares(scores) if with_energy else None
    return Projected(scores.unflatten(1, (2, -1)), energy)


def project_dual(
    qk: Float[Tensor, "batch pair token feature"],
    dual: Float[Tensor, "batch pair rank token"],
    mask: Bool[Tensor, "batch token"] | None = None,
    *,
    with_energy: bool = False,
) -> tuple[Projected, Float[Tensor, "batch pair feature rank"]]:
    """Scores and directions of the dual projection; axes as in `ksvd.dual_directions`."""
    if is_fast(qk, dual) and has_whole_sequences(qk):
        scores, directions, energy = DualScores.apply(qk, dual, mask, with_energy)
        return Projected(scores, energy), directions.mT
    directions = ksvd.dual_directions(qk, dual, mask)
    return project(qk, directions, mask, with_energy=with_energy), directions


def read_out(
    merged: Float[Tensor, "*batch head token rank"],
    readout: Float[Tensor, "*draw head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "*both token dim"]:
    """O = M G + b for every head, the heads side by side; leading axes broadcast."""
    if readout.ndim > merged.ndim:
        return sampled.read_out(merged, readout.squeeze(1), bias)
    if not is_fast(merged, readout, bias):
        return svgp.read_out(merged, readout.to(merged.dtype), bias)
    leading = merged.shape[:-3]
    of_each = readout.expand(*leading, *readout.shape[-3:])
    return ReadOut.apply(merged.flatten(0, -4), of_each.flatten(0, -4), bias).unflatten(0, leading)


def by_sequence(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: tuple[Float[Tensor, "*batch head token _"], ...],
    *,
    width: int,
) -> Iterable[Tensor]:
    """`function` of the inputs, with results about `width` wide for each token and head."""
    return over_sequences(function, inputs, width=width) if is_fast(*inputs) else function(*inputs)
