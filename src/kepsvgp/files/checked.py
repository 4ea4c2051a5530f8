"""Folders that know their files: `manifest.json` lists the checksum of each.

The files themselves are plain, for any tool to read. A file is replaced in three steps: its new
checksum is listed beside the old one, the file takes its place, the old checksum is dropped. So
whenever a process is killed, what lies there is listed; and whatever else comes to lie there, a
damaged file or one of another folder, is not.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kepsvgp.errors import UserError
from kepsvgp.files.atomic import locked, replacing
from kepsvgp.files.sealed import damaged, file_checksum, read_json, write_json

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CheckedFolder:
    """A folder with a manifest, or a part of one. Nothing is read before it is asked for.

    Attributes:
        root: Where the manifest is.
        part: The path below it that names are given from.
    """

    root: Path
    part: str = ""

    @property
    def path(self) -> Path:
        """Where its files are."""
        return self.root / self.part

    def checksum(self, name: str) -> str | None:
        """The listed checksum of a file; None if it is not listed."""
        listed = self._listed(missing_ok=True).get(self._key(name))
        return listed[-1] if listed else None

    def has(self, name: str) -> bool:
        """Whether there is such a file, and it is listed."""
        return (self.path / name).exists() and self.checksum(name) is not None

    def names(self) -> list[str]:
        """The listed files of the whole folder, from its root."""
        return list(self._listed())

    def check(self, name: str) -> Path:
        """The path of a file that is as it was written here; any other is a `UserError`."""
        path = self.path / name
        while True:
            if not path.is_file():
                raise UserError(f"{path} must exist; there is no such file.")
            manifest = self._listed()
            try:
                found = file_checksum(path)
            except OSError as error:
                raise damaged(path, "a file", error) from None
            if found in manifest.get(self._key(name), ()):
                return path
            # unless it was replaced meanwhile
            if manifest == self._listed():
                reason = f"its checksum is not in {MANIFEST}; or it is of another folder"
                raise damaged(path, "what belongs here", reason)

    def check_all(self) -> None:
        """Refuses the folder if any of its files is not as it was written."""
        for name in self.names():
            CheckedFolder(self.root).check(name)

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Yields a temporary path that takes the place of a file when the block succeeds."""
        with ExitStack() as stack:
            with replacing(self.path / name) as temporary:
                yield temporary
                stack.enter_context(locked(self.root))
                listed, new = self._listed(missing_ok=True), file_checksum(temporary)
                key = self._key(name)
                self._list(listed | {key: [*listed.get(key, ()), new]})
            self._list(listed | {key: [new]})

    def forget(self, name: str) -> None:
        """Removes a file, or a folder with all that is in it."""
        path, key = self.path / name, self._key(name)
        if not path.exists():
            return
        with locked(self.root):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
            kept = {
                other: sums
                for other, sums in self._listed().items()
                if other != key and not other.startswith(f"{key}/")
            }
            self._list(kept)

    def write_text(self, name: str, text: str) -> None:
        """Replaces a text file."""
        with self.replacing(name) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")

    def read_text(self, name: str) -> str:
        """The text of a file."""
        return self.check(name).read_text(encoding="utf-8")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replaces a JSON file."""
        self.write_text(name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """The content of a JSON file."""
        return json.loads(self.read_text(name))

    def write_json_lines(self, name: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replaces a file with one JSON object a line."""
        self.write_text(name, "".join(json.dumps(entry) + "\n" for entry in entries))

    def read_json_lines(self, name: str) -> list[dict[str, Any]]:
        """The objects in a file with one a line."""
        return [json.loads(line) for line in self.read_text(name).splitlines()]

    def _key(self, name: str) -> str:
        return (Path(self.part) / name).as_posix()

    def _listed(self, *, missing_ok: bool = False) -> dict[str, list[str]]:
        path = self.root / MANIFEST
        if path.exists():
            return read_json(path, "files")["files"]
        if missing_ok:
            return {}
        raise UserError(
            f"{self.root} must have a {MANIFEST}, which lists its files; it has none. It is no "
            "folder of kepsvgp, or was written by version 0.1: make it again with this one."
        )

    def _list(self, files: Mapping[str, Sequence[str]]) -> None:
        write_json(self.root / MANIFEST, {"files": files})
