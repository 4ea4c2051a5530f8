"""Unpacks archives of strangers: plain files, below one folder, and nothing else.

A member that would leave its folder, a link, a device, more members or more bytes than expected
are refused, and then nothing of the archive reaches the folder of data sets.
"""

import errno
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kepsvgp.errors import UserError
from kepsvgp.files import A_DAY, remove_leftovers

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
# of the system's errors those that an archive can cause: places and names that no file has
_CAUSED = (None, errno.EINVAL, errno.ENAMETOOLONG)
# bytes of what stands before a member; the longest path of a system has 4,096
_LONGEST_HEADER = 1 << 13
_IS_HEADER = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class _Member(NamedTuple):
    name: str
    size: int
    is_plain: bool
    extract: Callable[[Path], object]


class _Header(tarfile.TarInfo):
    """A member of a tar whose headers are small: the library reads each into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.type in _IS_HEADER and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


def extract(archive: Path, root: Path, folder: str, *, most_bytes: int, most_members: int) -> None:
    """Puts the content of a tar or zip, which must lie below `folder`, into `root / folder`.

    It is unpacked beside its place first. If the folder is not there yet, it appears as a whole;
    otherwise its files are replaced one by one, and others in it are left alone.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root, pattern=".unpacking-*", older_than=A_DAY)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as name:
        staging = Path(name)
        try:
            _unpack(archive, staging, folder, most_bytes, most_members)
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


def _unpack(archive: Path, staging: Path, folder: str, most_bytes: int, most_members: int) -> None:
    size = 0
    with _members(archive) as members:
        for number, member in enumerate(members, start=1):
            # the libraries write no more than what a member says
            size += member.size
            if size > most_bytes or number > most_members:
                raise UserError(
                    f"{archive} must unpack to at most {most_bytes} bytes in {most_members} "
                    "files and folders; it has more. It is not the publisher's "
                    "file: delete it."
                )
            fault = _fault(member, folder)
            if fault is not None:
                raise UserError(
                    f"{archive} must hold plain files only; its member {member.name!r} {fault}. "
                    "It may be malicious: nothing of it was kept. Delete it."
                )
            # other systems leave files of their own beside each
            path = PurePosixPath(member.name)
            if not path.name.startswith("._") and "__MACOSX" not in path.parts:
                member.extract(staging)


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield (_zip_member(zipped, info) for info in zipped.infolist())
    else:
        with tarfile.open(archive, tarinfo=_Header) as tarred:
            yield (_tar_member(tarred, info) for info in tarred)


def _tar_member(tarred: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    def extract(folder: Path) -> None:
        tarred.extract(info, folder, filter="data")

    return _Member(info.name, info.size, info.isreg() or info.isdir(), extract)


def _zip_member(zipped: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    return _Member(info.filename, info.file_size, is_plain, lambda to: zipped.extract(info, to))


def _fault(member: _Member, folder: str) -> str | None:
    path = PurePosixPath(member.name)
    if not member.is_plain:
        return "is a link or a device"
    if path.is_absolute() or ".." in path.parts or set(member.name) & set("\\:\0"):
        return "would be written outside of its folder"
    if path.parts and path.parts[0] not in (folder, "__MACOSX"):
        return f"is not below {folder}"
    return None


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
