"""Unpacks archives of strangers: plain files, below one folder, and nothing else.

A member that would leave its folder, a link, a device or more bytes than expected is refused,
and then nothing of the archive reaches the folder of data sets.
"""

import errno
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from kepsvgp.errors import UserError
from kepsvgp.files import A_DAY, sweep

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
# of the system's errors those that an archive can cause: places and names that no file has
_CAUSED = (None, errno.EINVAL, errno.ENAMETOOLONG)
_CHUNK = 1 << 20


class _Member(NamedTuple):
    name: str
    is_folder: bool
    stream: IO[bytes] | None


def extract(archive: Path, root: Path, folder: str, *, limit: int) -> None:
    """Puts the content of `archive`, which must lie below `folder`, into `root / folder`.

    It is unpacked beside its place first. If the folder is not there yet, it appears as a whole;
    otherwise its files are replaced one by one, and others in it are left alone.

    Args:
        archive: A tar (plain or compressed) or a zip file.
        root: The folder of data sets.
        folder: The one folder that the archive may write to.
        limit: The greatest number of unpacked bytes.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root, pattern=".unpacking-*", older_than=A_DAY)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as name:
        staging = Path(name)
        try:
            _unpack(archive, staging, folder, limit)
        except UserError:
            raise
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno not in _CAUSED:
                raise
            raise UserError(
                f"{archive} must be a whole tar or zip archive; unpacking it failed ({error}). "
                "Delete it and fetch it again."
            ) from None
        if not (staging / folder).is_dir():
            raise UserError(f"{archive} must contain the folder {folder}; it does not.")
        _put_in_place(staging / folder, root / folder)


def _unpack(archive: Path, staging: Path, folder: str, limit: int) -> None:
    left = limit
    with _members(archive) as members:
        for member in members:
            target = staging / _checked(archive, member.name, folder)
            if member.is_folder:
                target.mkdir(parents=True, exist_ok=True)
                continue
            # what other systems leave beside each file
            if target.name.startswith("._") or "__MACOSX" in target.parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            assert member.stream is not None
            with member.stream as source, target.open("wb") as sink:
                # counted while it is written: what an archive says about its sizes may be false
                while chunk := source.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise UserError(
                            f"{archive} must unpack to at most {limit} bytes; it has more. "
                            "It is not the publisher's file: delete it."
                        )
                    sink.write(chunk)


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _zip_members(archive, zipped)
    else:
        with tarfile.open(archive) as tarred:
            yield _tar_members(archive, tarred)


def _tar_members(archive: Path, tarred: tarfile.TarFile) -> Iterator[_Member]:
    for info in tarred:
        if not (info.isreg() or info.isdir()):
            raise _refusal(archive, info.name, "is a link or a device")
        yield _Member(info.name, info.isdir(), tarred.extractfile(info))


def _zip_members(archive: Path, zipped: zipfile.ZipFile) -> Iterator[_Member]:
    for info in zipped.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refusal(archive, info.filename, "is a link or a device")
        if info.flag_bits & 1:
            raise _refusal(archive, info.filename, "is encrypted")
        folder = info.is_dir()
        yield _Member(info.filename, folder, None if folder else zipped.open(info))


def _checked(archive: Path, name: str, folder: str) -> PurePosixPath:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or "\\" in name or ":" in name or "\0" in name:
        raise _refusal(archive, name, "would be written outside of its folder")
    if parts and parts[0] not in (folder, "__MACOSX"):
        raise _refusal(archive, name, f"is not below {folder}")
    return PurePosixPath(*parts)


def _refusal(archive: Path, name: str, reason: str) -> UserError:
    return UserError(
        f"{archive} must hold plain files only; its member {name!r} {reason}. It may be "
        "malicious: nothing of it was kept. Delete it."
    )


def _put_in_place(source: Path, target: Path) -> None:
    if not target.exists():
        source.rename(target)
        return
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        else:
            path.replace(there)


def place_file(file: Path, root: Path, folder: str) -> None:
    """Puts a data set that is one file into its folder."""
    target = root / folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    shutil.copyfile(file, partial)
    partial.replace(target)
