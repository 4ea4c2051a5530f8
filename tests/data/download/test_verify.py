import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datafiles import Evil, write_cola, write_imdb, write_svhn
from PIL import Image

from kepsvgp.data.download import catalogue
from kepsvgp.data.download.verify import verify


def data_set(name: str) -> catalogue.DataSet:
    (found,) = catalogue.find([name])
    return found


def states(name: str, root: Path) -> dict[str, str]:
    return {found.name: found.state for found in verify(data_set(name), root)}


@pytest.mark.parametrize("entry", catalogue.DATA_SETS, ids=lambda entry: entry.name)
def test_nothing_is_missing_and_not_damaged(tmp_path: Path, entry) -> None:
    assert states(entry.name, tmp_path) == {entry.folder: "missing"}


def test_cifar_files_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    trace = tmp_path / "it-ran"
    good = {"data": np.zeros((10_000, 3072), np.uint8), "fine_labels": [0] * 10_000}
    (folder / "test").write_bytes(pickle.dumps(good, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": Evil(trace)}, protocol=2))

    found = {one.name: one for one in verify(data_set("cifar100"), tmp_path)}

    assert {name: one.state for name, one in found.items()} == {
        "meta": "damaged",
        "train": "missing",
        "test": "not official",
    }
    assert "malicious" in found["meta"].remark
    assert not trace.exists()


def test_official_is_what_has_the_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "meta").write_bytes(b"official content")
    files = {"meta": hashlib.md5(b"official content").hexdigest()}

    (found,) = verify(replace(data_set("cifar100"), files=files), tmp_path)

    assert found.state == "official"


def test_svhn_says_how_much_of_it_there_is(tmp_path: Path) -> None:
    path = tmp_path / "svhn" / "test_32x32.mat"
    write_svhn(path, 11)
    (found,) = verify(data_set("svhn"), tmp_path)
    assert found.state == "not official"
    assert found.remark == "11 digits instead of 26032"

    path.write_bytes(path.read_bytes()[:999])
    assert states("svhn", tmp_path) == {"test_32x32.mat": "damaged"}


def test_incomplete_texts_are_damaged(tmp_path: Path) -> None:
    write_cola(tmp_path, (8551, 527, 100))
    write_imdb(tmp_path, 3)

    assert states("cola", tmp_path) == {
        "raw/in_domain_train.tsv": "complete",
        "raw/in_domain_dev.tsv": "complete",
        "raw/out_of_domain_dev.tsv": "damaged",
    }
    assert set(states("imdb", tmp_path).values()) == {"damaged"}


def test_arrays_and_pictures_are_looked_into(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.zeros((50, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.zeros(50_000, np.uint8))
    found = states("cifar10-c", tmp_path)
    assert (found["fog.npy"], found["labels.npy"]) == ("damaged", "not official")
    assert found["snow.npy"] == "missing"

    (tmp_path / "LSUN_resize").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "LSUN_resize" / "0.png")
    (found,) = verify(data_set("lsun"), tmp_path)
    assert found == ("LSUN_resize", "not official", "1 images instead of 10000")


@pytest.mark.realdata
def test_real_data_is_what_it_should_be(data_root: Path) -> None:
    assert set(states("cifar10", data_root).values()) == {"official"}
    assert states("cifar100", data_root)["test"] == "official"
    assert set(states("imdb", data_root).values()) == {"complete"}
    assert set(states("cola", data_root).values()) == {"complete"}
