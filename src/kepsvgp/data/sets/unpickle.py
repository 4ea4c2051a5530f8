"""Reads the pickles in which CIFAR is distributed, and nothing else.

A pickle can run any program. This reader builds dictionaries, lists, strings, numbers and arrays
of bytes; a file that asks for anything more is refused before it gets it.
"""

import pickle
import pickletools
import struct
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kepsvgp.errors import UserError

# what damaged pickles raise; all of them are the file's fault
_DAMAGE = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, MemoryError, RecursionError, struct.error),
)


class _Forbidden(Exception):
    """The pickle asks for something that CIFAR does not need."""


class _Type:
    """Stands for numpy.dtype: there are bytes, and no others."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise _Forbidden(f"an array of type {code!r}")

    def __setstate__(self, state: object) -> None: ...


class _Array:
    """Stands for numpy.ndarray: as large as the bytes that the file has for it."""

    array: np.ndarray | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if not (isinstance(kind, _Type) and isinstance(data, bytes)):
            raise _Forbidden("an array of objects")
        # numpy checks that the bytes fill the shape; the copy does not hold on to the file's
        flat = np.frombuffer(data, np.uint8)
        self.array = flat.reshape(shape, order="F" if fortran else "C").copy()


def _encode(text: str, encoding: str) -> bytes:
    # how Python 3 writes bytes in the old protocols
    if encoding != "latin1":
        raise _Forbidden(f"the codec {encoding!r}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        match module_name, global_name:
            case "numpy", "dtype":
                return _Type
            case "numpy", "ndarray":
                return _Array
            # a new function each time: a pickle may set attributes of what it is given
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return lambda *_: _Array()
            case "_codecs", "encode":
                return lambda *arguments: _encode(*arguments)
        raise _Forbidden(f"{module_name}.{global_name}")


def load_plain(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of CIFAR's kind; anything else is a `UserError`."""
    try:
        with path.open("rb") as stream, warnings.catch_warnings():
            # pickletools undoes escapes in names, and Python deprecates some that damage makes
            warnings.simplefilter("ignore", DeprecationWarning)
            _check_memo(stream)
            stream.seek(0)
            content = _Unpickler(stream, encoding="bytes").load()
        return {_text(name): _plain(value) for name, value in content.items()}
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


def _check_memo(stream: BinaryIO) -> None:
    """Refuses a pickle that asks for a table of a billion entries: a few bytes can."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream), start=1):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise pickle.UnpicklingError(f"memo entry {argument} after {count} operations")


def _text(name: object) -> str:
    # Python 2 wrote bytes
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
