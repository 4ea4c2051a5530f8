import contextlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from kepsvgp.data.download import archive as unpacking
from kepsvgp.errors import UserError
from kepsvgp.files import PART

MEGABYTE = 1 << 20


def extract(archive: Path, root: Path, *, limit: int = MEGABYTE) -> None:
    unpacking.extract(archive, root, "set", most_bytes=limit)


def write_tar(path: Path, members: list[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


BOTH = pytest.mark.parametrize("write", [write_tar, write_zip])


@BOTH
def test_folder_is_unpacked_and_nothing_else(tmp_path: Path, write) -> None:
    large = b"b" * 3 * MEGABYTE
    members = [("set/a.txt", b"a"), ("set/deep/b.txt", large), ("./set/c", b"c"), ("other/d", b"d")]
    archive = write(tmp_path / "archive", members)

    extract(archive, tmp_path / "root", limit=4 * MEGABYTE)

    assert files_of(tmp_path / "root") == {
        "set/a.txt": b"a",
        "set/deep/b.txt": large,
        "set/c": b"c",
    }


@pytest.mark.parametrize(
    "member",
    [
        "../outside.txt",
        "set/../../outside.txt",
        special("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("set/link", tarfile.SYMTYPE, "a.txt"),
        special("set/link", tarfile.LNKTYPE, "../../outside"),
        special("set/pipe", tarfile.FIFOTYPE),
        special("set/device", tarfile.CHRTYPE),
    ],
    ids=lambda member: getattr(member, "name", member),
)
def test_tar_that_would_leave_its_folder_is_refused_as_a_whole(tmp_path: Path, member) -> None:
    root = tmp_path / "deep" / "root"
    archive = write_tar(tmp_path / "bad.tar.gz", [("set/good.txt", b"good"), (member, b"")])

    with pytest.raises(UserError, match=r"bad\.tar\.gz must be a whole .* of plain files"):
        extract(archive, root)
    assert not list(root.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "bad.tar.gz"}


@BOTH
@pytest.mark.parametrize("name", ["../outside.txt", "/absolute.txt", "set/../../outside.txt"])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, write, name: str) -> None:
    archive = write(tmp_path / "bad", [("set/good.txt", b"good"), (name, b"evil")])

    with contextlib.suppress(UserError):
        extract(archive, tmp_path / "deep" / "root")
    assert not Path("/absolute.txt").exists()
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - {archive}
    assert all(path.parent == tmp_path / "deep/root/set" for path in written)


@BOTH
def test_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, write) -> None:
    archive = write(tmp_path / "bomb", [("set/zeros", bytes(5 * MEGABYTE))])
    assert archive.stat().st_size < MEGABYTE // 10

    with pytest.raises(UserError, match="more than 1048576 bytes"):
        extract(archive, tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


@BOTH
def test_archive_of_too_many_files_is_refused(tmp_path: Path, write) -> None:
    archive = write(tmp_path / "many", [(f"set/{number}", b"") for number in range(257)])

    with pytest.raises(UserError, match="more than 1048576 bytes"):
        extract(archive, tmp_path / "root")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tar_with_a_huge_header_is_refused(tmp_path: Path, kind: int) -> None:
    archive = tmp_path / "header.tar.gz"
    with tarfile.open(archive, "w:gz", format=kind) as tar:
        tar.addfile(tarfile.TarInfo("set/" + "a" * 10_000))

    with pytest.raises(UserError, match="a header of 10"):
        extract(archive, tmp_path / "root")


@pytest.mark.parametrize(
    "about",
    [
        {"GNU.sparse.size": "1", "GNU.sparse.offset": "0", "GNU.sparse.numbytes": "1"},
        {"GNU.sparse.size": "1", "GNU.sparse.map": "0,1"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"},
        None,
    ],
    ids=["0.0", "0.1", "1.0", "old"],
)
def test_sparse_file_is_refused_before_its_map_is_read(tmp_path: Path, about) -> None:
    member = special("set/a", tarfile.GNUTYPE_SPARSE) if about is None else tarfile.TarInfo("set/a")
    member.pax_headers = about or {}
    endless = b"9" * 4 * MEGABYTE
    archive = write_tar(tmp_path / "sparse.tar.gz", [("set/good", b"good"), (member, endless)])

    with pytest.raises(UserError, match="a sparse file"):
        extract(archive, tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


def test_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "empty.tar", [])

    with pytest.raises(UserError, match="must contain the folder set"):
        extract(archive, tmp_path / "root")


def test_only_own_old_leftovers_are_removed(tmp_path: Path) -> None:
    names = ".unpacking-mine", f".unpacking-old{PART}", f".unpacking-new{PART}"
    mine, old, new = (tmp_path / "root" / name for name in names)
    for folder in (mine, old, new):
        folder.mkdir(parents=True)
    for folder in (mine, old):
        os.utime(folder, (0, 0))

    extract(write_tar(tmp_path / "archive", [("set/a", b"a")]), tmp_path / "root")

    assert {path.name for path in (tmp_path / "root").iterdir()} == {mine.name, new.name, "set"}


def test_folder_that_is_there_keeps_its_other_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "set" / "deep").mkdir(parents=True)
    (root / "set" / "mine.txt").write_bytes(b"mine")
    (root / "set" / "deep" / "b").write_bytes(b"old")
    archive = write_tar(tmp_path / "archive", [("set/a", b"a"), ("set/deep/b", b"new")])

    extract(archive, root)

    assert files_of(root) == {"set/mine.txt": b"mine", "set/a": b"a", "set/deep/b": b"new"}
