import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kepsvgp.data import store
from kepsvgp.files import PART


def test_root_is_the_argument_then_the_environment_then_the_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KEPSVGP_DATA", str(tmp_path / "environment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert store.data_root(tmp_path / "argument") == tmp_path / "argument"
    assert store.data_root() == tmp_path / "environment"
    monkeypatch.delenv("KEPSVGP_DATA")
    assert store.data_root() == tmp_path / "cache" / "kepsvgp" / "data"


def test_generated_files_leave_a_read_only_root_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (
        store.generated(tmp_path / "not" / "yet")
        == tmp_path / "not" / "yet" / "generated" / "format2"
    )

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.generated(tmp_path) == tmp_path / "cache" / "kepsvgp" / "generated" / "format2"


def test_key_changes_with_every_part_of_it() -> None:
    array = np.arange(6, dtype=np.uint8)
    keys = [
        store.key(1, "a", array),
        store.key(2, "a", array),
        store.key(1, "b", array),
        store.key(1, "a", array[::-1]),
        store.key(1, "a", array.reshape(2, 3)),
        store.key(1, "a", array.astype(np.int8)),
        store.key("1a", array),
    ]

    assert len(set(keys)) == len(keys)
    assert store.key(1, "a", array) == keys[0]


def test_cached_array_is_made_once_and_never_in_part(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "array.npy"

    def dies() -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.cached(path, dies)
    assert not path.exists()
    first = store.cached(path, lambda: np.arange(5))
    assert (store.cached(path, dies) == first).all()
    # mapped: a change in memory does not reach the file
    first[0] = 99
    assert store.load_array(path)[0] == 0


def test_old_halves_are_removed_with_the_next_file(tmp_path: Path) -> None:
    old, new, growing = (tmp_path / f".{name}.npy.x{PART}" for name in "abc")
    whole = tmp_path / "c.npy"
    for folder in (old, new, growing):
        folder.mkdir()
    whole.write_bytes(b"")
    (growing / "content").write_bytes(b"")
    for path in (old, growing, whole):
        os.utime(path, (time.time() - 100_000,) * 2)

    store.cached(tmp_path / "d.npy", lambda: np.arange(2))

    assert {path.name for path in tmp_path.iterdir()} == {
        new.name, growing.name, whole.name, "d.npy", "manifest.json",
    }  # fmt: skip


def test_file_that_several_want_is_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> np.ndarray:
        made.append(threading.get_ident())
        time.sleep(0.2)
        return np.arange(3)

    # the lock belongs to an open file, so threads compete for it as processes do
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: store.cached(tmp_path / "a.npy", make), range(4)))

    assert all((result == np.arange(3)).all() for result in results)
    assert len(made) == 1
    assert not list(tmp_path.glob(".*"))
