"""What users can get wrong when they build or call a layer."""

from typing import get_args

import torch
from torch import Tensor

from kepsvgp.errors import UserError


def positive(**values: float) -> None:
    """Every named value is above zero."""
    for name, value in values.items():
        if value <= 0:
            raise UserError(f"{name} must be positive; got {value}.")


def choice(name: str, value: str, choices: object) -> None:
    """The value is one of a `Literal`'s."""
    allowed = get_args(choices)
    if value not in allowed:
        raise UserError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def heads(name: str, dim: int, num_heads: int) -> None:
    """Every head has a share of the width."""
    if num_heads < 1 or dim < 1 or dim % num_heads != 0:
        raise UserError(f"{name} must be divisible by num_heads={num_heads}; got {dim}.")


def tokens(
    x: Tensor, mask: Tensor | None, num_samples: int | None, *, dim: int, num_tokens: int | None
) -> None:
    """Tokens, mask and number of samples fit together and the layer.

    `num_tokens` is the length that a map over tokens was built for, None where there is none.
    """
    if x.ndim not in (3, 4) or x.shape[-1] != dim:
        raise UserError(
            f"x must have shape (batch, token, {dim}) or (sample, batch, token, {dim}); "
            f"got {tuple(x.shape)}."
        )
    if x.ndim == 4 and num_samples != x.shape[0]:
        raise UserError(
            f"num_samples must be the size of x's sample axis, {x.shape[0]}; got {num_samples}."
        )
    if num_samples is not None and num_samples < 1:
        raise UserError(f"num_samples must be at least 1; got {num_samples}.")
    if num_tokens is not None and x.shape[-2] != num_tokens:
        raise UserError(
            f"x must have {num_tokens} tokens, as the concat merge was built for; "
            f"got {x.shape[-2]}. merge='add' takes any length."
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[-3:-1]):
        raise UserError(
            f"mask must be bool of shape {tuple(x.shape[-3:-1])}, True at real tokens; "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
