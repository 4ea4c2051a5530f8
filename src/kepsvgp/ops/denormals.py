"""Numbers below 10⁻³⁸, with which a processor computes many times slower.

Training makes them: embeddings of tokens that no training text has shrink under weight decay,
and Adam's moments of them with their square. A late epoch on CoLA took three times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Takes such numbers for zero, in this thread and in all that it starts meanwhile.

    Threads of torch that are there already go on as they were, so begin with this.
    """
    was_flushed = (torch.full((), 1e-38) / 10).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_flushed)
