"""Dropout from sixteen random bits for each entry, where torch draws a uniform number.

On a processor torch's draws, and its mask in floating point, take longer than the rest of dropout
and are felt in every training step. Here an entry is dropped with a probability of
round(p · 2¹⁶) / 2¹⁶, and the others are scaled to match.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kepsvgp.ops import private
from kepsvgp.ops.dispatch import is_fast

LEVELS = 2**16


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, faster in training on a processor; all else is as there."""

    def forward(self, input: Tensor) -> Tensor:
        """Drops entries with a probability of `p` and scales the rest by 1 / (1 − p)."""
        num_dropped = round(self.p * LEVELS)
        # modes that answer for dropout, such as that of MC dropout, must see the call
        is_watched = private.has_function_modes()
        if self.training and 0 < num_dropped < LEVELS and is_fast(input) and not is_watched:
            return _Dropped.apply(input, num_dropped)
        return super().forward(input)


class _Dropped(torch.autograd.Function):
    """x ∘ m / (1 − p), and the same of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_dropped: int) -> Tensor:
        # four entries from one number of the generator
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = draws >= num_dropped - LEVELS // 2
        ctx.save_for_backward(kept)
        ctx.scale = LEVELS / (LEVELS - num_dropped)
        return _masked(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return _masked(grad_outputs[0], kept, ctx.scale), None


def _masked(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    # a product with bytes takes half as long as one with truth values
    return (x * kept.view(torch.uint8)).mul_(scale)
