"""Says what is there: whether it is the official file, and whether it can be read at all."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from kepsvgp.data import pictures, store
from kepsvgp.data.download.catalogue import DataSet
from kepsvgp.data.download.web import md5_of
from kepsvgp.data.sets import cifar, cola, imdb, ood, svhn
from kepsvgp.errors import UserError

# complete: all of it is there and reads well, and its publisher gives no checksum of its parts
State = Literal["official", "complete", "not official", "damaged", "missing"]


class Finding(NamedTuple):
    """A file or folder of a data set, and what was found there."""

    name: str
    state: State
    remark: str = ""


def verify(data_set: DataSet, root: Path) -> list[Finding]:
    """What there is of a data set, file by file; reads every byte."""
    folder = root / data_set.folder
    if not folder.exists():
        return [Finding(data_set.folder, "missing")]
    if not data_set.files:
        return [_judge(data_set, "", folder, "")._replace(name=data_set.folder)]
    return [_judge(data_set, name, folder / name, md5) for name, md5 in data_set.files.items()]


def _judge(data_set: DataSet, name: str, path: Path, md5: str) -> Finding:
    if not path.exists():
        return Finding(name, "missing")
    if md5 and md5_of(path) == md5:
        return Finding(name, "official")
    try:
        remark = _inspect(data_set, name, path)
    except UserError as error:
        return Finding(name, "damaged", str(error))
    if not md5:
        return Finding(name, "not official" if remark else "complete", remark)
    return Finding(name, "not official", remark or "another checksum than the publisher's")


def _inspect(data_set: DataSet, name: str, path: Path) -> str:
    """A remark about a file that no checksum vouches for; an error if it cannot be read."""
    root = path.parents[len(Path(data_set.folder, name).parts) - 1]
    match data_set.name:
        case "cifar10" | "cifar100":
            layout = cifar.CIFAR10 if data_set.name == "cifar10" else cifar.CIFAR100
            if name == layout.meta_file:
                cifar.read_classes(root, layout)
            else:
                cifar.read_file(root, layout, name)
        case "cifar10-c" | "cifar100-c":
            _check_array(path)
        case "svhn":
            found = len(svhn.read(path)[1])
            return _counted(found, svhn.OFFICIAL_SIZE, "digits")
        case "cola":
            cola.read(path, cola.Sizes()._asdict()[path.stem])
        case "imdb":
            imdb.list_folder(path, int(path.name == "pos"))
        case "lsun":
            return _counted(len(pictures.find(path)), ood.LSUN_SIZE, "images")
    return ""


def _counted(found: int, official: int, what: str) -> str:
    return "" if found == official else f"{found} {what} instead of {official}"


def _check_array(path: Path) -> None:
    array = store.load_array(path)
    shape = (50_000,) if path.stem == "labels" else (50_000, 32, 32, 3)
    if array.dtype != np.uint8 or array.shape != shape:
        raise store.refuse(path, f"a uint8 array {shape}", f"it is {array.dtype} {array.shape}")
