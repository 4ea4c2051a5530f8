"""How tensors are cut, so that a part passes through all formulas before the next one does.

Arithmetic is cheap on a CPU and memory is not: large results are written to pages that the
system must first provide. Parts are small enough to be taken from memory in use, and large
enough for threads to share the work.
"""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK_BYTES = 2**22


def blocks(t: Float[Tensor, "batch head token *rest"]) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences and of tokens that cut `t` into blocks of about `BLOCK_BYTES`."""
    batch, head, token, *rest = t.shape
    return slices(batch, token, BLOCK_BYTES // (head * math.prod(rest) * t.element_size()))


def has_whole_sequences(t: Float[Tensor, "batch head token *rest"]) -> bool:
    """Whether no block of `t` ends within a sequence."""
    return all(tokens == slice(None) for _, tokens in blocks(t))


def slices(batch: int, token: int, num_tokens: int) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences, or of the tokens of one, with about `num_tokens` tokens each."""
    num_tokens = max(1, num_tokens)
    if token > num_tokens:
        for row in range(batch):
            for start in range(0, token, num_tokens):
                yield slice(row, row + 1), slice(start, start + num_tokens)
    elif token > 0:
        for row in range(0, batch, num_tokens // token):
            yield slice(row, row + num_tokens // token), slice(None)


def over_sequences(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: tuple[Float[Tensor, "*batch head token _"], ...],
    *,
    width: int,
) -> Iterator[Tensor]:
    """`function` of some sequences at a time, whose results are `width` wide for each token."""
    batch, (head, token, _) = inputs[0].shape[:-3], inputs[0].shape[-3:]
    num_sequences = max(1, BLOCK_BYTES // max(1, head * token * width * inputs[0].element_size()))
    rows = (t.reshape(batch.numel(), *t.shape[-3:]).split(num_sequences) for t in inputs)
    results = zip(*(function(*part) for part in zip(*rows, strict=True)), strict=True)
    return (torch.cat(r).reshape(batch + r[0].shape[1:]) for r in results)
