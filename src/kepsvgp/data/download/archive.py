"""Unpacks archives whose checksum is the publisher's: plain files, below one folder.

The standard library keeps members within the folder that they are unpacked to. Links, devices and
sparse files of a tar, and more bytes, members or headers than expected, are refused besides; then
nothing reaches the data sets.
"""

import errno
import lzma
import struct
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import NoReturn

from kepsvgp.errors import UserError
from kepsvgp.files import A_DAY, PART, remove_leftovers

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError),
)
# of the system's errors those that an archive can cause: places and names that no file has
_CAUSED = (None, errno.EINVAL, errno.ENAMETOOLONG)
# what the smallest file takes on a disk, and more than a header of the longest path does
_BLOCK, _LONGEST_HEADER = 1 << 12, 1 << 13


class _Header(tarfile.TarInfo):
    """A member of a tar whose headers are small: the library reads each into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        # other types are of files and folders, or checked as members
        if header.type in b"xgXLK" and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header

    def _refuse(self, *_: object) -> NoReturn:
        raise tarfile.ReadError("a sparse file")

    # their maps have no limit, and say nothing of the bytes that are written
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse


def extract(archive: Path, root: Path, folder: str, *, most_bytes: int) -> None:
    """Puts the `folder` of a tar or zip into `root`, and nothing else of it.

    It is unpacked beside its place first. If the folder is not there yet, it appears as a whole;
    otherwise its files are replaced one by one, and others in it are left alone.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root, older_than=A_DAY)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-", suffix=PART) as name:
        staging = Path(name)
        try:
            _unpack(archive, staging, most_bytes)
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno not in _CAUSED:
                raise
            raise UserError(
                f"{archive} must be a whole tar or zip archive of plain files; unpacking it failed "
                f"({error}), and nothing of it was kept. Delete it and fetch it again."
            ) from None
        if not (staging / folder).is_dir():
            raise UserError(f"{archive} must contain the folder {folder}; it does not.")
        _put_in_place(staging / folder, root / folder)


def _unpack(archive: Path, staging: Path, most_bytes: int) -> None:
    size = 0

    def count(num_bytes: int) -> None:
        nonlocal size
        size += max(num_bytes, _BLOCK)
        if size > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes")

    def check(member: tarfile.TarInfo, to: str) -> tarfile.TarInfo:
        count(member.size)
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name!r} is a link or a device")
        return tarfile.data_filter(member, to)

    # neither library writes more than what a member says
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for member in zipped.infolist():
                count(member.file_size)
            zipped.extractall(staging)
    else:
        with tarfile.open(archive, tarinfo=_Header) as tarred:
            tarred.extractall(str(staging), filter=check)


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
