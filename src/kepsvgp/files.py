"""Files that are either whole or absent: every artefact is written through here."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kepsvgp.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` that takes its place when the block succeeds.

    The content reaches the disk before the name changes, so that after a crash `path`
    holds either the old content or the new one. On an error the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        # mkstemp gives 0600; what we write should be as readable as any other new file
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes `content` to `path` as a whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, as a whole or not at all."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file; a damaged one is a `UserError` that names it."""
    return _read(path, lambda: json.loads(path.read_text(encoding="utf-8")), "JSON")


def _read(path: Path, parse: Callable[[], Any], kind: str) -> Any:
    try:
        return parse()
    except FileNotFoundError:
        raise UserError(f"{path} must exist; there is no such file.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} must hold valid {kind}; it is damaged ({error}). "
            "Delete it and make it again with the command that wrote it."
        ) from None
