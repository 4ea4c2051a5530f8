"""Writing that a crash cannot leave half done, and locks between processes."""

import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from kepsvgp.errors import UserError

try:
    import fcntl
except ImportError:
    # not on Windows
    fcntl = None

# how the name of a folder ends in which something is being written
PART = ".kepsvgp.part"
# seconds after which nobody is still writing in it
A_DAY = 24 * 3600


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` that takes its place when the block succeeds.

    The content reaches the disk before the name changes, so that after a crash `path`
    holds either the old content or the new one. The temporary path is in a folder of its own,
    as libraries may put files of theirs beside it; all that a killed process leaves is that
    folder, and the next to write `path` a day later removes it unless it is still held. A file
    that is replaced keeps its permissions, and a link goes on pointing to it. Pipes and devices
    are written to as they are. A full disk or a folder that may not be written to is a
    `UserError`.
    """
    folder: str | None = None
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        path = path.resolve() if path.is_symlink() else path
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(
            path.parent, pattern=f".{glob.escape(path.name)}.*{PART}", older_than=A_DAY
        )
        folder = tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        temporary = Path(folder) / "content"
        with locked(Path(folder)):
            yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        # some libraries make it 0600; what we write should be as readable as any other new file
        temporary.chmod(_mode(path, Path(folder)))
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path} must be writable; writing it failed ({reason}) and left what was there. "
            "Make room or give another folder, then run the same command again."
        ) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path, *, pattern: str = f".*{PART}", older_than: float = 0.0) -> None:
    """Removes the folders in which killed processes left something half written.

    Args:
        folder: Where to look.
        pattern: What they are called; with `**/` before it, at any depth.
        older_than: Seconds since anything in them was changed, where others may be writing now.
    """
    limit = time.time() - older_than
    for path in list(folder.glob(pattern)):
        if path.is_dir() and not path.is_symlink() and _last_change(path) <= limit:
            with suppress(OSError), locked(path, wait=False):
                shutil.rmtree(path, ignore_errors=True)


def _last_change(folder: Path) -> float:
    try:
        # of the files too: one that grows does not touch its folder
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        # somebody has just finished with it
        return time.time()


def _mode(path: Path, folder: Path) -> int:
    """The permissions of a file or, where it is new, those that any new one gets in `folder`."""
    # asking the system for its mask would change it under other threads
    new = folder / "new"
    new.touch()
    return stat.S_IMODE((path if path.exists() else new).stat().st_mode)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes `content` to `path` as a whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds a folder, or a file that is made for it, against other processes on this machine.

    The lock is the system's, so that it goes with the process that held it, even a killed one.
    Without `wait`, one that is taken raises `BlockingIOError`. It is not held where the system,
    or a network drive, has no locks.
    """
    if fcntl is None:
        yield
        return
    how = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    file = os.open(path, how, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
        yield
    finally:
        os.close(file)
