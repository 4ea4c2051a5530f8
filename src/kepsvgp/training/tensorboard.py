"""TensorBoard files, where they are asked for."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kepsvgp.errors import UserError


class Board:
    """Writes entries of the history; one that is not enabled writes nothing."""

    def __init__(self, writer: Any | None) -> None:
        self._writer = writer

    def __enter__(self) -> "Board":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Adds the numbers of one epoch."""
        if self._writer is None:
            return
        for group, values in entry.items():
            named = values.items() if isinstance(values, Mapping) else [("", values)]
            for name, value in named:
                tag = f"{group}/{name}" if name else group
                self._writer.add_scalar(tag, value, entry["epoch"])
        self._writer.flush()


def check_board(*, enabled: bool) -> None:
    """Refuses to go on where a board is asked for and its library is missing."""
    if enabled and importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "train.tensorboard must have its library; it is not installed. "
            "Install it with `pip install 'kepsvgp[tensorboard]'`."
        )


def open_board(folder: Path, *, enabled: bool, start: int = 0) -> Board:
    """A board in `folder`; entries after epoch `start` that were written before are dropped."""
    if not enabled:
        return Board(None)
    from torch.utils.tensorboard.writer import SummaryWriter

    return Board(SummaryWriter(str(folder), purge_step=start + 1))
