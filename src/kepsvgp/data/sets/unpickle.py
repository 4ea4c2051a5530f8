"""Reads the pickles in which CIFAR is distributed, and nothing else.

A pickle can run any program. This reader builds dictionaries, lists, strings, numbers and arrays
of bytes; a file that asks for anything more is refused before it gets it.
"""

import pickle
import pickletools
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from kepsvgp.errors import UserError

# what damaged pickles raise; all of them are the file's fault
_DAMAGE = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, MemoryError, RecursionError, struct.error),
)


class _Forbidden(Exception):
    """The pickle asks for something that CIFAR does not need."""


class _Numpy:
    """Stands for an array, or for its type, and keeps what the file says of it."""

    state: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, kind, fortran, data = self.state
        name = kind.arguments[0]
        if name not in ("u1", b"u1"):
            raise _Forbidden(f"an array of type {name!r}")
        # numpy checks that the bytes fill the shape; the copy does not hold on to the file's
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C").copy()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        # a new function each time: a pickle may set attributes of what it is given
        match module_name, global_name:
            case "numpy", "dtype" | "ndarray":
                return lambda *arguments: _Numpy(*arguments)
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return lambda *arguments: _Numpy(*arguments)
            # how Python 3 writes bytes in the old protocols
            case "_codecs", "encode":
                return lambda text, _: text.encode("latin1")
        raise _Forbidden(f"{module_name}.{global_name}")


def load_plain(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of CIFAR's kind; anything else is a `UserError`."""
    try:
        with path.open("rb") as stream, warnings.catch_warnings():
            # pickletools undoes escapes in names, and Python deprecates some that damage makes
            warnings.simplefilter("ignore", DeprecationWarning)
            for count, (opcode, argument, _) in enumerate(pickletools.genops(stream), start=1):
                # a few bytes can ask for a table of a billion entries
                if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
                    raise pickle.UnpicklingError(f"memo entry {argument} after {count} operations")
            stream.seek(0)
            content = _Unpickler(stream, encoding="bytes").load()
        return {
            # Python 2 wrote bytes
            name.decode("latin1") if isinstance(name, bytes) else str(name): (
                value.array() if isinstance(value, _Numpy) else value
            )
            for name, value in content.items()
        }
    except _Forbidden as error:
        raise UserError(
            f"{path} must hold nothing but arrays, strings, lists and dictionaries; it asks for "
            f"{error}. It may be malicious: nothing of it was run. Delete it."
        ) from None
    except _DAMAGE as error:
        raise UserError(
            f"{path} must be a whole pickle file; reading it failed ({error}). It is truncated "
            "or another file under this name: delete it and fetch it again."
        ) from None
