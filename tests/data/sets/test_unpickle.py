import contextlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from datafiles import Evil

from kepsvgp.data.sets.unpickle import load_plain
from kepsvgp.errors import UserError


def write(path: Path, content, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(5))
def test_plain_content_comes_back(tmp_path: Path, protocol: int) -> None:
    """But in the newest protocol, which has another way to write arrays that CIFAR never used."""
    array = np.arange(30, dtype=np.uint8).reshape(5, 6)
    content = {"data": array, "f": np.asfortranarray(array), "labels": [1, 2], "b": b"\xff\0"}

    loaded = load_plain(write(tmp_path / "file", content, protocol))

    assert loaded.keys() == content.keys()
    assert loaded["labels"] == [1, 2]
    assert loaded["b"] == b"\xff\0"
    assert loaded["data"].dtype == np.uint8
    assert (loaded["data"] == array).all()
    assert (loaded["f"] == array).all()


def test_python_2_pickle_comes_back_with_text_keys(tmp_path: Path) -> None:
    # as Python 2 writes {'labels': [3, 8]}: strings are SHORT_BINSTRING
    (tmp_path / "file").write_bytes(b"\x80\x02}q\x01U\x06labelsq\x02]q\x03(K\x03K\x08es.")

    assert load_plain(tmp_path / "file") == {"labels": [3, 8]}


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_that_calls_a_program_is_refused_and_runs_nothing(
    tmp_path: Path, protocol: int
) -> None:
    trace = tmp_path / "it-ran"
    path = write(tmp_path / "file", {"data": Evil(trace)}, protocol)

    with pytest.raises(UserError, match=r"file must hold nothing but .*system"):
        load_plain(path)
    assert not trace.exists()
    # the trap is real: the usual reader falls into it
    pickle.loads(path.read_bytes())
    assert trace.exists()


NOT_WHOLE, FORBIDDEN = "file must be a whole pickle", "file must hold nothing but .* it asks for"
# the shape is written as a one-byte integer before the type
WRONG_SHAPE = pickle.dumps({"a": np.arange(200, dtype=np.uint8)}, 2).replace(
    b"K\xc8\x85", b"K\xc9\x85"
)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", FORBIDDEN),
        (b"cposix\nsystem\n(S'true'\ntR.", FORBIDDEN),
        (b"cnumpy\nload\n.", FORBIDDEN),
        (b"cnumpy\nfromfile\n.", FORBIDDEN),
        (b"cos\npath.join\n.", FORBIDDEN),
        (b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.", FORBIDDEN),
        (b"i__builtin__\neval\n.", "file must"),
        (b"Pid\n.", NOT_WHOLE),
        (b"c_codecs\nencode\n(S'aa'\nS'hex'\ntR.", NOT_WHOLE),
        (b"cnumpy\nndarray\n((L1000000000000L\nttR.", NOT_WHOLE),
        (b"]\x85.", NOT_WHOLE),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.", NOT_WHOLE),
        # a strange escape in a name
        (b"cnum\\upy\nndarray\n.", FORBIDDEN),
        (WRONG_SHAPE, NOT_WHOLE),
        # more bytes, or places for them, than there is memory for
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.", NOT_WHOLE),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "memo entry 2147483647"),
        (pickle.dumps({"a": np.zeros(2)}, 2), "an array of type .f8"),
        (pickle.dumps({"a": np.array([None])}, 2), "an array of type .O"),
    ],
)
def test_pickle_of_anything_else_is_refused(tmp_path: Path, source: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(source)

    with pytest.raises(UserError, match=message):
        load_plain(tmp_path / "file")


def test_pickle_cannot_change_what_it_is_given(tmp_path: Path) -> None:
    # BUILD with a second dictionary sets attributes of the object below it
    poison = b"cnumpy.core.multiarray\n_reconstruct\n(N}S'__defaults__'\n(I1\ntstb."
    (tmp_path / "poison").write_bytes(poison)
    with contextlib.suppress(UserError):
        load_plain(tmp_path / "poison")
    array = np.arange(3, dtype=np.uint8)

    assert (load_plain(write(tmp_path / "file", {"a": array}))["a"] == array).all()
