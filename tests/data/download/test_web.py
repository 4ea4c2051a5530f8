import hashlib
import random
from pathlib import Path

import pytest
from webserver import Behaviour, serving

from kepsvgp.data.download.web import Unreachable, download
from kepsvgp.errors import UserError

CONTENT = random.Random(0).randbytes(1_000_003)
MD5 = hashlib.md5(CONTENT).hexdigest()


def get(address: str, path: Path, md5: str = MD5) -> None:
    download(f"{address}/file", path, md5=md5, pause_seconds=0.001)


def test_download_is_the_file_and_tells_its_progress(tmp_path: Path) -> None:
    seen = []
    with serving(Behaviour({"/file": CONTENT})) as address:
        download(
            f"{address}/file",
            tmp_path / "deep" / "file",
            md5=MD5,
            on_progress=lambda done, total: seen.append((done, total)),
        )

    assert (tmp_path / "deep" / "file").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]


CUT = {"cut_after": 300_000}
EXPECTED = [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


@pytest.mark.parametrize(
    ("there", "behaviour", "requests"),
    [
        pytest.param(None, CUT, EXPECTED, id="continued where each connection was cut"),
        pytest.param(CONTENT[:700_000], {}, ["bytes=700000-"], id="continued by the next run"),
        pytest.param(CONTENT, {}, [f"bytes={len(CONTENT)}-"], id="whole already"),
        pytest.param(CONTENT + b"more", {}, None, id="longer than the file"),
        pytest.param(b"something old", {"ranges": False}, None, id="server cannot continue"),
        pytest.param(None, {"announce": False}, [None], id="length not announced"),
        pytest.param(None, {"failures": 2}, [None] * 3, id="server fails for a while"),
    ],
)
def test_download_is_whole_in_the_end(tmp_path: Path, there, behaviour, requests) -> None:
    if there is not None:
        (tmp_path / "file.part").write_bytes(there)
    server = Behaviour({"/file": CONTENT}, **behaviour)
    with serving(server) as address:
        get(address, tmp_path / "file")

    assert (tmp_path / "file").read_bytes() == CONTENT
    assert requests is None or server.requests == requests


def test_cut_connection_without_an_announced_length_is_told_by_its_checksum(tmp_path) -> None:
    with (
        serving(Behaviour({"/file": CONTENT}, announce=False, cut_after=1000)) as address,
        pytest.raises(UserError, match="checksum"),
    ):
        get(address, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_server_that_never_sends_a_byte_is_given_up(tmp_path: Path) -> None:
    behaviour = Behaviour({"/file": CONTENT}, cut_after=0)
    with serving(behaviour) as address, pytest.raises(Unreachable, match="cut"):
        get(address, tmp_path / "file")
    assert len(behaviour.requests) == 4
    assert not (tmp_path / "file").exists()


def test_absent_file_and_absent_server_are_said_to_be_so(tmp_path: Path) -> None:
    with serving(Behaviour({})) as address, pytest.raises(Unreachable, match="404"):
        get(address, tmp_path / "file")
    with pytest.raises(Unreachable, match="refused"):
        get(address, tmp_path / "file")
    with pytest.raises(Unreachable):
        get("http://no-such-server.invalid", tmp_path / "file")


def test_wrong_checksum_leaves_nothing(tmp_path: Path) -> None:
    with (
        serving(Behaviour({"/file": CONTENT[:-1] + b"?"})) as address,
        pytest.raises(UserError, match=f"must have the checksum .*{MD5}"),
    ):
        get(address, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_download_without_room_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with (
        serving(Behaviour({"/file": CONTENT})) as address,
        pytest.raises(UserError, match="must have room for 1 MB"),
    ):
        get(address, tmp_path / "file")
