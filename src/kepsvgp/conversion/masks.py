"""Which tokens are padding, from whatever an attention module is called with.

What says something else (a causal mask, windows, a bias by position) is never read as padding;
what cannot be told is refused.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.errors import UserError

# what is added to a score to hide a token is below, a bias by position above
_HIDDEN = -1e3
_MASKS = ("attention_mask", "mask", "attn_mask")


def sequences(
    module: nn.Module, tokens: Tensor, given: Mapping[str, Any]
) -> tuple[Float[Tensor, "batch token dim"], Bool[Tensor, "batch token"] | None]:
    """The tokens, batch first, and which of them are real.

    Args:
        module: The attention module.
        tokens: Its first argument.
        given: All its arguments, by name.
    """
    for name, value in given.items():
        if name.startswith("cu_seq") and value is not None:
            raise _packed(name)
        if isinstance(value, Tensor) and value is not tokens and not _is_known(name):
            raise UserError(
                f"{name} must be called {', '.join(_MASKS)} or …padding_mask, by which masks are "
                f"known; got one of {tuple(value.shape)}, which may hide padding. Rename the "
                f"argument of {type(module).__name__}, or convert another layer."
            )
    if isinstance(module, nn.MultiheadAttention):
        x = tokens.unsqueeze(0) if tokens.ndim == 2 else tokens
        x = x if module.batch_first or tokens.ndim == 2 else x.transpose(0, 1)
        named, paired = _not_padding(given, x), _of_heads(given.get("attn_mask"), x)
        return x, paired if named is None else named if paired is None else named & paired
    x = tokens.flatten(1, -2) if tokens.ndim > 2 else tokens.unsqueeze(0)
    named = _not_padding(given, x)
    return x, _of_mask(given, x) if named is None else named


def _is_known(name: str) -> bool:
    """Whether an argument is no mask, or a mask that is read, or hides heads and no tokens."""
    known = (*_MASKS, "is_index_masked")
    return "mask" not in name or name in known or name.endswith(("padding_mask", "head_mask"))


def _not_padding(given: Mapping[str, Any], x: Tensor) -> Bool[Tensor, "batch token"] | None:
    """From an argument that is True, or −∞, at padding."""
    for name, value in given.items():
        if value is None or not (name == "is_index_masked" or name.endswith("padding_mask")):
            continue
        if not isinstance(value, Tensor) or not _is_of_tokens(value, x):
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{name} must be (batch, token), {tuple(x.shape[:2])}; got {found}.")
        return ~_hidden(value.reshape(x.shape[:2]))
    return None


def _is_of_tokens(value: Tensor, x: Tensor) -> bool:
    # a graph that is being traced would fix the sizes that it compares
    return torch.compiler.is_compiling() or value.numel() == x.shape[:2].numel()


def _of_heads(mask: Tensor | None, x: Tensor) -> Bool[Tensor, "batch token"] | None:
    """From torch's mask of pairs, True where hidden: one of all, or one of every head."""
    if mask is None:
        return None
    seen = ~_hidden(mask)
    if mask.ndim == 3:
        return real_tokens(seen.unflatten(0, (len(x), -1)), x)
    _refuse_packed(seen.unsqueeze(0), torch.ones_like(seen[:1]))
    return None


def _of_mask(given: Mapping[str, Any], x: Tensor) -> Bool[Tensor, "batch token"] | None:
    name = next((name for name in _MASKS if given.get(name) is not None), "")
    mask = given.get(name)
    if not isinstance(mask, Tensor) or mask.shape != (x.shape[1], x.shape[1]):
        return real_tokens(mask, x)
    if name == "attn_mask":
        # by torch's convention of pairs, also where there are as many sequences as tokens
        return real_tokens(mask.unsqueeze(0), x)
    if name == "mask" and len(x) == x.shape[1] and not torch.compiler.is_compiling():
        _refuse_ambiguous(mask)
    return real_tokens(mask, x)


def _refuse_ambiguous(mask: Tensor) -> None:
    """Padding of as many sequences as tokens, unless every token may see itself."""
    seen = ~_hidden(mask) if mask.is_floating_point() else mask.bool()
    if seen.diagonal().all() and not seen.all():
        raise UserError(
            f"mask must tell padding from pairs of tokens; one of {tuple(mask.shape)} for as many "
            "sequences as tokens may be either. Call it attn_mask where it is of pairs, give "
            "padding as (batch, 1, 1, token), or use another batch size."
        )


def real_tokens(mask: Any, x: Float[Tensor, "batch token dim"]) -> Bool[Tensor, "..."] | None:
    """True at the tokens that are no padding, from any mask that attention modules are given.

    A token is real if any token may see it: causal masks, windows and biases by position allow
    that, and padding does not.
    """
    batch, count = x.shape[:2]
    if not isinstance(mask, Tensor):
        if mask is None:
            return None
        raise UserError(
            f"the attention mask must be a tensor; got a {type(mask).__name__}. Load the model "
            "with attn_implementation='sdpa' or 'eager'."
        )
    given = tuple(mask.shape)
    if mask.ndim == 3 and mask.shape[-1] == 1 < count:
        mask = mask.squeeze(-1)
    if mask.ndim == 1:
        mask = mask.unsqueeze(0)
    if mask.ndim == 2 and mask.shape[0] in (1, batch) and mask.shape[1] == count:
        return _of_row(mask).expand(batch, count)
    if mask.shape == (count, count):
        mask = mask.unsqueeze(0)
    if mask.ndim == 3 and mask.shape[0] in (1, batch):
        mask = mask.unsqueeze(1)
    if mask.ndim < 3 or mask.shape[-1] < count or mask.shape[-2] not in (1, count):
        raise UserError(
            f"the attention mask must be of the tokens, {(batch, count)}, or of pairs of them; "
            f"got {given}. Convert another layer."
        )
    rows = mask[..., -count:]
    seen = ~_hidden(rows) if rows.is_floating_point() else rows.bool()
    if mask.ndim == 4 and mask.shape[0] in (1, batch):
        seen = seen[:, 0]
        if mask.dtype == torch.bool and seen.shape[-2] == count:
            seen = seen != _marks_hidden(seen)
        real = seen.any(dim=-2)
        _refuse_packed(seen, real)
        return real.expand(batch, count)
    # of another grouping, such as windows
    if not torch.compiler.is_compiling() and not seen.any(dim=-2).all():
        raise UserError(
            f"the attention mask must hide padding as (batch, head, token, token); got "
            f"{tuple(mask.shape)}, which hides tokens of {batch} sequences. Convert another layer."
        )
    return None


def _of_row(mask: Tensor) -> Bool[Tensor, "_ token"]:
    if not mask.is_floating_point():
        return mask.bool()
    # a float may hide tokens by large negative numbers, or keep them by ones
    is_added = (mask < 0).any() | (mask == 0).all()
    return torch.where(is_added, ~_hidden(mask), mask != 0)


def _marks_hidden(rows: Bool[Tensor, "batch token token"]) -> Bool[Tensor, ""]:
    """Whether True marks what a token may not see, as in MPT's causal masks.

    Otherwise some tokens would be seen by earlier ones alone, and not by themselves.
    """
    own = rows.diagonal(dim1=-2, dim2=-1)
    by_earlier = (~own & rows.any(dim=-2)).any() | ~own.any()
    by_later = (rows.tril() & ~own.unsqueeze(-2)).any()
    return by_earlier & ~by_later


def _refuse_packed(
    seen: Bool[Tensor, "batch row token"], real: Bool[Tensor, "batch token"]
) -> None:
    """Refuses neighbours that do not see each other: they are of different sequences."""
    if seen.shape[1] == 1 or torch.compiler.is_compiling():
        return
    together = seen.diagonal(1, -2, -1) | seen.diagonal(-1, -2, -1)
    if (real[:, 1:] & real[:, :-1] & ~together).any():
        raise _packed("the attention mask")


def _packed(what: str) -> UserError:
    return UserError(
        f"{what} must leave every sequence in a row of its own: the posterior is one of whole "
        "rows. Pad the sequences instead of packing them."
    )


def _hidden(mask: Tensor) -> Bool[Tensor, "..."]:
    """Where True, or a large negative number, stands for what is hidden."""
    return mask <= _HIDDEN if mask.is_floating_point() else mask.bool()
