import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from datafiles import write_cola
from webserver import Behaviour, serving

from kepsvgp.data.download import catalogue
from kepsvgp.data.download.catalogue import DataSet
from kepsvgp.data.download.fetch import fetch
from kepsvgp.data.sets import cola
from kepsvgp.errors import UserError


def pack(tmp_path: Path, kind: str = "gztar") -> bytes:
    """CoLA's folder as an archive."""
    write_cola(tmp_path / "source", (40, 7, 5))
    name = shutil.make_archive(
        str(tmp_path / "packed"), kind, tmp_path / "source", base_dir="cola_public"
    )
    return Path(name).read_bytes()


def data_set(address: str, content: bytes, suffix: str = ".tar.gz") -> DataSet:
    return DataSet(
        name="cola",
        title="CoLA",
        url=f"{address}/cola{suffix}?download=1",
        md5=hashlib.md5(content).hexdigest(),
        size=len(content),
        folder="cola_public",
        files={f"raw/{name}.tsv": "" for name in cola.Sizes._fields},
    )


@pytest.mark.parametrize(("kind", "suffix"), [("gztar", ".tar.gz"), ("zip", ".zip")])
def test_fetch_brings_the_data_set_over_a_bad_line(tmp_path: Path, kind, suffix) -> None:
    content = pack(tmp_path, kind)
    behaviour = Behaviour({f"/cola{suffix}": content}, cut_after=len(content) // 3)
    root = tmp_path / "root"
    with serving(behaviour) as address:
        wanted = data_set(address, content, suffix)
        assert fetch(wanted, root, pause_seconds=0.001) is True
        assert fetch(wanted, root, pause_seconds=0.001) is False

    assert len(behaviour.requests) > 2
    assert len(cola.read(root / "cola_public/raw/in_domain_dev.tsv", 7).texts) == 7
    # the archive has served
    assert not list((root / "downloads").iterdir())


def test_archive_put_there_by_hand_is_used_and_kept_if_it_is_the_right_one(tmp_path: Path) -> None:
    content = pack(tmp_path)
    wanted = data_set("http://no-such-server.invalid", content)
    path = wanted.archive_path(tmp_path / "root")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"another file")
    with pytest.raises(UserError, match=rf"cola\.tar\.gz must have the checksum .*{wanted.md5}"):
        fetch(wanted, tmp_path / "root")
    path.write_bytes(content)

    assert fetch(wanted, tmp_path / "root") is True

    assert not wanted.missing(tmp_path / "root")
    assert path.exists()


def test_no_network_is_an_error_that_says_which_file_to_put_where(tmp_path: Path) -> None:
    wanted = data_set("http://no-such-server.invalid", b"content")

    with pytest.raises(UserError) as caught:
        fetch(wanted, tmp_path)

    message = str(caught.value)
    assert str(tmp_path / "downloads" / "cola.tar.gz") in message
    assert wanted.md5 in message
    assert "kepsvgp data fetch cola" in message


def test_archive_without_its_files_and_a_local_address_are_refused(tmp_path: Path) -> None:
    content = pack(tmp_path)
    with serving(Behaviour({"/cola.tar.gz": content})) as address:
        wanted = replace(data_set(address, content), files={"raw/more.tsv": ""})
        with pytest.raises(UserError, match=r"must contain cola_public/raw/more\.tsv"):
            fetch(wanted, tmp_path / "root")
    with pytest.raises(UserError, match="must begin with http"):
        fetch(data_set("file:///etc", b""), tmp_path)


def test_single_file_is_fetched_into_its_folder(tmp_path: Path) -> None:
    content = b"a MATLAB file"
    with serving(Behaviour({"/housenumbers/test_32x32.mat": content})) as address:
        wanted = replace(
            data_set(address, content),
            url=f"{address}/housenumbers/test_32x32.mat",
            folder="svhn",
            files={"test_32x32.mat": ""},
        )
        fetch(wanted, tmp_path, keep=True)

    assert (tmp_path / "svhn" / "test_32x32.mat").read_bytes() == content
    assert (tmp_path / "downloads" / "test_32x32.mat").exists()


def test_catalogue_is_complete_and_its_addresses_are_of_the_web() -> None:
    names = [entry.name for entry in catalogue.DATA_SETS]

    assert len(set(names)) == len(names)
    for entry in catalogue.DATA_SETS:
        assert entry.url.startswith(("https://", "http://"))
        assert len(entry.md5) == 32
        assert entry.archive
    with pytest.raises(UserError, match="got imbd"):
        catalogue.find(["imbd"])
