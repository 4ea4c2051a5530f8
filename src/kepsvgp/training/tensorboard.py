"""TensorBoard files, where they are asked for."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kepsvgp.config.comparison import flatten
from kepsvgp.errors import UserError

# takes entries of the history
Write = Callable[[Mapping[str, Any]], None]


def check_board(*, enabled: bool) -> None:
    """Refuses to go on where a board is asked for and its library is missing."""
    if enabled and importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "train.tensorboard must have its library; it is not installed. "
            "Install it with `pip install 'kepsvgp[tensorboard]'`."
        )


@contextmanager
def open_board(folder: Path, *, enabled: bool, start: int = 0) -> Iterator[Write]:
    """What writes entries to a board in `folder`, or nothing where it is not enabled.

    Entries after epoch `start` that were written before are dropped.
    """
    if not enabled:
        yield lambda entry: None
        return
    from torch.utils.tensorboard.writer import SummaryWriter

    with closing(SummaryWriter(str(folder), purge_step=start + 1)) as writer:

        def write(entry: Mapping[str, Any]) -> None:
            for name, value in flatten(entry).items():
                writer.add_scalar(name.replace(".", "/"), value, entry["epoch"])
            writer.flush()

        yield write
