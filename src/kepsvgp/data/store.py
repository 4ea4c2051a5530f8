"""Where data sets are, and arrays that are computed once and then mapped from disk.

Data sets lie under one root as their publishers lay them out. What we compute from them goes
to `generated/` beside them, each file whole or absent, under a name that says what it is of.
"""

import hashlib
import os
import tokenize
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kepsvgp.errors import UserError
from kepsvgp.files import A_DAY, FORMAT, CheckedFolder, expanded, locked, remove_leftovers

# what NumPy raises for a damaged header, which it reads as if it were Python
_DAMAGE = (
    *(ValueError, OSError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError),
    *(tokenize.TokenError, RecursionError),
)
# bytes; larger arrays are mapped without being read as a whole
_LARGEST_CHECKED = 1 << 30


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
    place = root if os.access(at, os.W_OK) else user_cache()
    # other versions may use the same root
    return place / "generated" / f"format{FORMAT}"


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

    Its folder lists its checksum; a file that is not listed is made again.

    Args:
        path: The file.
        write: Writes the content to the path it is given, which then gets its name.
    """
    files = CheckedFolder(path.parent)
    if files.has(path.name):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock):
        try:
            # another process may have made it while this one waited
            if not files.has(path.name):
                remove_leftovers(path.parent, older_than=A_DAY)
                with files.replacing(path.name) as temporary:
                    write(temporary)
        finally:
            lock.unlink(missing_ok=True)


def cached(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array at `path`, mapped; made and written first if it is not there."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as stream:
            np.save(stream, make(), allow_pickle=False)

    once(path, write)
    return mapped(path)


def mapped(path: Path) -> np.ndarray:
    """An array that `once` made, mapped."""
    if path.stat().st_size <= _LARGEST_CHECKED:
        CheckedFolder(path.parent).check(path.name)
    return load_array(path)


def load_array(path: Path) -> np.ndarray:
    """A `.npy` file, mapped: what is not used is not read. Changes stay in memory."""
    try:
        # copy-on-write and not read-only: torch wants memory that it could write to
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except _DAMAGE as error:
        raise refuse(path, "a NumPy array file (.npy)", f"reading it failed ({error})") from None
