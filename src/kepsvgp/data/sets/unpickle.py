"""Reads pickles that hold plain data, and nothing else.

The publishers of CIFAR distribute Python pickles, and a pickle can run any program. This
reader builds dictionaries, lists, strings, bytes, numbers and numeric arrays; a file that asks
for anything more is refused before it gets it.
"""

import pickle
import pickletools
import struct
import warnings
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from kepsvgp.errors import UserError

# what damaged pickles raise; all of them are the file's fault
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
)


class _Forbidden(Exception):
    """The pickle names something that plain data does not need."""


class _Type:
    """Stands for numpy.dtype while the file is read: a numeric type and its byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        self.dtype = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise _Forbidden(f"an array of type {name!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        big = state[1] in (b">", ">")
        self.dtype = self.dtype.newbyteorder(">" if big else "<")


class _Array:
    """Stands for numpy.ndarray while the file is read: only bytes, a shape and a type."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if not (isinstance(kind, _Type) and isinstance(data, bytes)):
            raise _Forbidden("an array of objects")
        # numpy checks that the bytes fill the shape; the copy does not hold on to the file's
        flat = np.frombuffer(data, kind.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C").copy()


def _array(subtype: object, *_: object) -> _Array:
    if subtype is not _Array:
        raise _Forbidden("an array of an unknown class")
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    # how Python 3 writes bytes in the old protocols
    if encoding != "latin1":
        raise _Forbidden(f"the codec {encoding!r}")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        match module_name, global_name:
            case "numpy", "ndarray":
                return _Array
            case "numpy", "dtype":
                return _Type
            # a new function each time: a pickle may set attributes of what it is given
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return lambda *arguments: _array(*arguments)
            case "_codecs", "encode":
                return lambda *arguments: _encode(*arguments)
            case _:
                raise _Forbidden(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Forbidden("an object from elsewhere")


def load_plain(path: Path) -> Any:
    """The content of a pickle of plain data; anything else is a `UserError`."""
    try:
        with path.open("rb") as stream, warnings.catch_warnings():
            # pickletools undoes escapes in names, and Python deprecates some that damage makes
            warnings.simplefilter("ignore", DeprecationWarning)
            _check_memo(stream)
            stream.seek(0)
            content = _PlainUnpickler(stream, encoding="bytes").load()
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
    return _plain(content)


def _check_memo(stream: BinaryIO) -> None:
    """Refuses a pickle that asks for a table of a billion entries: a few bytes can."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream), start=1):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise pickle.UnpicklingError(f"memo entry {argument} after {count} operations")


def _plain(content: Any) -> Any:
    """Arrays for what stood for them, and text keys for the bytes that Python 2 wrote."""
    if isinstance(content, _Array):
        return content.array
    if isinstance(content, dict):
        return {
            name.decode("latin1") if isinstance(name, bytes) else name: _plain(value)
            for name, value in content.items()
        }
    return content
