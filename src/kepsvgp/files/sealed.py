"""Checksums, and JSON files that carry their own."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kepsvgp.errors import UserError
from kepsvgp.files.atomic import write_atomic

# raised when an older version could not read what is written now
FORMAT = 2


def new_checksum(content: bytes = b"") -> hashlib.blake2b:
    """A checksum that tells damage, not malice."""
    return hashlib.blake2b(content, digest_size=16)


def file_checksum(path: Path) -> str:
    """The checksum of what a file holds."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, new_checksum).hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes `value` as indented JSON with its format and checksum, as a whole or not at all."""
    # as it will be read: keys become text
    content = json.loads(json.dumps(dict(value))) | {"format": FORMAT}
    content["checksum"] = _checksum_of(content)
    write_atomic(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """What `write_json` wrote; a damaged or changed file is a `UserError` that names it.

    Args:
        path: The file.
        keys: What it must have: a whole file of another kind has not.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "JSON", error) from None
    if not isinstance(content, dict):
        raise damaged(path, "a JSON object", f"it holds a {type(content).__name__}")
    _check_format(path, content.get("format"))
    found = content.pop("checksum", None)
    if found != _checksum_of(content):
        raise damaged(path, "JSON", "its checksum is not that of its content")
    del content["format"]
    if not set(keys) <= content.keys():
        found = ", ".join(sorted(content)) or "nothing"
        raise damaged(path, f"JSON with {', '.join(keys)}", f"it has {found[:200]}")
    return content


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


def _checksum_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return new_checksum(text.encode()).hexdigest()


def _check_format(path: Path, found: object) -> None:
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
