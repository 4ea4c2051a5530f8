"""Files that are either whole or absent: every artefact is written through here.

What we write ourselves also carries the version of its format and a checksum: JSON files as two
keys, safetensors files in their header, arrays behind their last element. A file that was
changed, cut or damaged is then refused instead of being read as other numbers, and one of a run
names it, so that it is refused in the folder of another.
"""

import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from kepsvgp.errors import UserError

# raised when an older version could not read what is written now
FORMAT = 1

# seconds after which nobody is still writing what has the name of a half-written file
A_DAY = 24 * 3600

# what the header of a safetensors file says
_FORMAT_KEY = "kepsvgp_format"
CHECKSUM = "kepsvgp_checksum"
_NO_SUM = "0" * 32
# whose a file is: in the record of a run and the headers of its tensors, and in its JSON files
RUN = "run"
_OF_RUN = "of_run"
_CHUNK = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` that takes its place when the block succeeds.

    The content reaches the disk before the name changes, so that after a crash `path`
    holds either the old content or the new one. The temporary path is in a folder of its own,
    `.NAME.….part`, as libraries may put files of theirs beside it; all that a killed process
    leaves is that folder, and the next to write `path` a day later removes it. A file that is
    replaced keeps its permissions, and a link goes on pointing to it. A full disk or a folder
    that may not be written to is a `UserError`.
    """
    folder: str | None = None
    path = path.resolve() if path.is_symlink() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, pattern=f".{glob.escape(path.name)}.*.part", older_than=A_DAY)
        folder = tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        temporary = Path(folder) / "content"
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        # some libraries make it 0600; what we write should be as readable as any other new file
        temporary.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
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


def remove_leftovers(folder: Path, *, pattern: str = ".*.part", older_than: float = 0.0) -> None:
    """Removes what killed processes left half written in `folder`.

    Args:
        folder: Where to look.
        pattern: What it is called; with `**/` before it, at any depth.
        older_than: Seconds since it was last changed, where others may be writing now.
    """
    limit = time.time() - older_than
    for path in list(folder.glob(pattern)):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime <= limit:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes `content` to `path` as a whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def checksum(content: bytes) -> str:
    """A checksum that tells damage, not malice."""
    return new_checksum(content).hexdigest()


def write_json(path: Path, value: Mapping[str, Any], *, run: str = "") -> None:
    """Writes `value` as indented JSON with its format and checksum, as a whole or not at all.

    A file of a run names it, and is refused in another one's folder.
    """
    sealed = _seal(value, run)
    write_atomic(path, json.dumps(sealed, indent=2, sort_keys=True) + "\n")


def read_json(path: Path, *keys: str, alone: bool = False, run: str = "") -> dict[str, Any]:
    """What `write_json` wrote; a damaged or changed file is a `UserError` that names it.

    Args:
        path: The file.
        keys: What it must have: a whole file of another kind has not.
        alone: Whether it must have nothing else.
        run: The run that it must not deny to be of.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "JSON", error) from None
    content = _unseal(path, content, run)
    if not set(keys) <= content.keys() or (alone and content.keys() != set(keys)):
        found = ", ".join(sorted(content)) or "nothing"
        raise damaged(path, f"JSON with {', '.join(keys)}", f"it has {found[:200]}")
    return content


def read_tree(path: Path, depth: int, *, run: str = "") -> dict[str, Any]:
    """What `write_json` wrote of objects within objects, so many levels below the first."""
    content = read_json(path, run=run)
    level: list[Any] = [content]
    for _ in range(depth):
        level = [value for node in level for value in node.values()]
        if not all(isinstance(node, dict) for node in level):
            raise damaged(path, f"JSON objects {depth + 1} levels deep", "it holds something else")
    return content


def write_json_lines(path: Path, entries: Sequence[Mapping[str, Any]], *, run: str = "") -> None:
    """Writes one JSON object a line, at least one; the last has the checksum of all."""
    whole = [dict(entry) for entry in entries]
    sealed = _seal({"entries": whole}, run)
    whole[-1] |= {key: value for key, value in sealed.items() if key != "entries"}
    write_atomic(path, "".join(json.dumps(entry) + "\n" for entry in whole))


def read_json_lines(path: Path, *, run: str = "") -> list[dict[str, Any]]:
    """What `write_json_lines` wrote; no entries where there is no file."""
    if not path.exists():
        return []
    try:
        entries = [json.loads(line) for line in read_text(path).splitlines()]
        seal = {key: entries[-1].pop(key) for key in ("format", "checksum")}
        if _OF_RUN in entries[-1]:
            seal[_OF_RUN] = entries[-1].pop(_OF_RUN)
    except LookupError:
        raise damaged(path, "JSON lines", "its last line has no checksum") from None
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise damaged(path, "JSON lines", error) from None
    return _unseal(path, {"entries": entries, **seal}, run)["entries"]


def check_name(path: Path) -> None:
    """Refuses a path that is no text, which a file of tensors or a configuration cannot have."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} must be a path in UTF-8; rename it, or give another.") from None


def expanded(path: Path | str) -> Path:
    """The path with `~` and `~user` as the folders they stand for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{path} must begin with the home of a user of this system; there is none of that "
            "name. Write ./ before a folder whose name begins with ~."
        ) from None


def absolute(path: Path | str) -> Path:
    """The path from the root, as it is from every folder; links are followed."""
    return expanded(path).resolve()


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; what is wrong with it is a `UserError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} must exist; there is no such file.") from None
    except (UnicodeDecodeError, OSError) as error:
        raise damaged(path, "text in UTF-8", error) from None


def damaged(path: Path, expected: str, reason: object) -> UserError:
    """The error for a file of ours that is not what we wrote."""
    return UserError(
        f"{path} must hold {expected} as kepsvgp wrote it; it is damaged, changed or something "
        f"else ({reason}). Delete it and make it again with the command that wrote it."
    )


def check_run(path: Path, found: object, run: str, remedy: str) -> None:
    """Refuses a file that names another run than `run`; some name none."""
    if run and found is not None and found != run:
        raise UserError(
            f"{path} must be of the run in whose folder it is; it was written for another one, "
            f"of another seed or configuration. Put the right one back. {remedy}"
        )


def _seal(value: Mapping[str, Any], run: str) -> dict[str, Any]:
    # as it will be read: keys become text
    content = json.loads(json.dumps(dict(value))) | {"format": FORMAT}
    if run:
        content[_OF_RUN] = run
    return content | {"checksum": _checksum_of(content)}


def _unseal(path: Path, content: Any, run: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise damaged(path, "a JSON object", f"it holds a {type(content).__name__}")
    check_format(path, content.get("format"))
    found = content.pop("checksum", None)
    if found != _checksum_of(content):
        raise damaged(path, "JSON", "its checksum is not that of its content")
    del content["format"]
    remedy = "Or delete it and make it again with the command that wrote it."
    check_run(path, content.pop(_OF_RUN, None), run, remedy)
    return content


def _checksum_of(content: Mapping[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def check_format(path: Path, found: object) -> None:
    """Refuses a file whose format this version does not know."""
    if found == FORMAT and not isinstance(found, bool):
        return
    if isinstance(found, int) and found > FORMAT:
        raise UserError(
            f"{path} must have format {FORMAT}, which this version reads; it has {found}. It was "
            "written by a newer kepsvgp: upgrade with `pip install -U kepsvgp`."
        )
    raise UserError(
        f"{path} must have format {FORMAT}; it has {'none' if found is None else repr(found)}. It "
        "is damaged, was changed, or was written by an older kepsvgp or another program: make it "
        "again with the command that wrote it."
    )


def tensor_metadata(about: Mapping[str, str] | None = None) -> dict[str, str]:
    """Metadata for a safetensors file that `seal_tensors` will seal."""
    return {**(about or {}), _FORMAT_KEY: str(FORMAT), CHECKSUM: _NO_SUM}


def seal_tensors(path: Path) -> None:
    """Puts the checksum of a safetensors file into its header, where zeros hold its place."""
    with path.open("rb+") as stream:
        length = int.from_bytes(stream.read(8), "little")
        content = json.loads(stream.read(length))
        # the library writes the metadata in an order that changes from time to time
        content["__metadata__"] = dict(sorted(content["__metadata__"].items()))
        header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        header = header.ljust(length)
        assert len(header) == length
        stream.seek(8)
        stream.write(header)
        stream.seek(0)
        total = hashlib.file_digest(stream, new_checksum).hexdigest()
        stream.seek(8 + header.index(_sum_field(_NO_SUM)))
        stream.write(_sum_field(total))


def check_tensors(path: Path, expected: str, remedy: str) -> dict[str, str]:
    """The metadata of a safetensors file that is as `seal_tensors` left it.

    Args:
        path: The file.
        expected: What it should hold, for the error.
        remedy: What to do if it does not, for the error.
    """
    check_name(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if length > path.stat().st_size:
                raise ValueError("it is cut off")
            header = stream.read(length)
            metadata = json.loads(header).get("__metadata__", {})
            version, found = metadata[_FORMAT_KEY], metadata[CHECKSUM]
            check_format(path, int(version))
            field = _sum_field(found)
            total = new_checksum(start + header.replace(field, _sum_field(_NO_SUM), 1))
            while chunk := stream.read(_CHUNK):
                total.update(chunk)
    except FileNotFoundError:
        raise UserError(f"{path} must hold {expected}; there is no such file. {remedy}") from None
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise _damaged_tensors(path, expected, reason, remedy) from None
    if total.hexdigest() != found:
        reason = "its checksum is not that of its content"
        raise _damaged_tensors(path, expected, reason, remedy)
    return metadata


def _damaged_tensors(path: Path, expected: str, reason: object, remedy: str) -> UserError:
    return UserError(
        f"{path} must hold {expected}; it is damaged or something else ({reason}). {remedy}"
    )


def _sum_field(value: str) -> bytes:
    return f'"{CHECKSUM}":"{value}"'.encode()


def new_checksum(content: bytes = b"") -> hashlib.blake2b:
    """A checksum to be fed piece by piece."""
    return hashlib.blake2b(content, digest_size=16)
