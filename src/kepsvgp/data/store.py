"""Where data sets are, and arrays that are computed once and then mapped from disk.

Data sets lie under one root as their publishers lay them out. What we compute from them goes
to `generated/` beside them, each file whole or absent, under a name that says what it is of.
"""

import hashlib
import os
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from kepsvgp.errors import UserError
from kepsvgp.files import A_DAY, expanded, new_checksum, remove_leftovers, replacing

# what NumPy raises for a damaged header, which it reads as if it were Python
_DAMAGE = (
    *(ValueError, OSError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError),
    *(tokenize.TokenError, RecursionError),
)
# stands before the checksum of an array
_MARK = b"kepsvgp\x01"
_CHUNK = 1 << 20
# bytes; larger arrays are mapped without being read as a whole
_LARGEST_CHECKED = 1 << 30

try:
    import fcntl
except ImportError:
    # not on Windows
    fcntl = None


def user_cache() -> Path:
    """The folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kepsvgp"


def data_root(root: Path | None = None) -> Path:
    """The folder of data sets: `root`, else `KEPSVGP_DATA`, else one in the user's cache."""
    if root is not None:
        return expanded(root)
    named = os.environ.get("KEPSVGP_DATA")
    return expanded(named) if named else user_cache() / "data"


def generated(root: Path) -> Path:
    """The folder for arrays computed from the data under `root`."""
    # a shared root may be read-only
    at = next(folder for folder in (root, *root.parents) if folder.exists())
    return (root if os.access(at, os.W_OK) else user_cache()) / "generated"


def require(path: Path, data_set: str) -> Path:
    """The path itself if it is there; else an error that says how to get it there."""
    if not path.exists():
        raise UserError(
            f"{path} must exist; it is not there. `kepsvgp data fetch {data_set}` downloads it; "
            f"without a network, `kepsvgp data list` says which file to put where. Another "
            "folder of data sets is named by KEPSVGP_DATA or data.root."
        )
    return path


def refuse(path: Path, expected: str, came: str) -> UserError:
    """The error for a file that is not what its name says."""
    return UserError(
        f"{path} must be {expected}; {came}. It is damaged or another file under this name: "
        "delete it and fetch it again."
    )


def key(*parts: object) -> str:
    """A short name that changes with any of its parts; arrays count with all their bytes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).view(np.uint8).reshape(-1).data)
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def once(path: Path, write: Callable[[Path], None]) -> None:
    """Has `write` make the file, unless it is there: as a whole, by one process at a time.

    Args:
        path: The file.
        write: Writes the content to the path it is given, which then gets its name.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        # another process may have made it while this one waited
        if not path.exists():
            remove_leftovers(path.parent, older_than=A_DAY)
            with replacing(path) as temporary:
                write(temporary)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits for other processes on this machine that make the same file."""
    if fcntl is None:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as stream:
        # some network drives have no locks: then each process does the work, and no harm is done
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def cached(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array at `path`, mapped; made and written first if it is not there."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as stream:
            np.save(stream, make(), allow_pickle=False)
        # a checksum behind the array, where NumPy does not look
        with temporary.open("rb+") as stream:
            total = hashlib.file_digest(stream, new_checksum).digest()
            stream.seek(0, os.SEEK_END)
            stream.write(_MARK + total)

    once(path, write)
    if path.stat().st_size <= _LARGEST_CHECKED:
        _check(path)
    return load_array(path)


def _check(path: Path) -> None:
    total = new_checksum()
    left = path.stat().st_size - len(_MARK) - total.digest_size
    with path.open("rb") as stream:
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            total.update(chunk)
            left -= len(chunk)
        if stream.read() != _MARK + total.digest():
            raise refuse(path, "an array that kepsvgp generated", "its checksum is wrong")


def load_array(path: Path) -> np.ndarray:
    """A `.npy` file, mapped: what is not used is not read. Changes stay in memory."""
    try:
        # copy-on-write and not read-only: torch wants memory that it could write to
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except _DAMAGE as error:
        raise refuse(path, "a NumPy array file (.npy)", f"reading it failed ({error})") from None
