"""Which data sets there are, where their publishers keep them and how to know the real ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kepsvgp.data.shifts.corruptions import KINDS
from kepsvgp.errors import UserError

# where archives wait to be unpacked, below the folder of data sets
DOWNLOADS = "downloads"


@dataclass(frozen=True)
class DataSet:
    """A data set as its publisher distributes it.

    Attributes:
        name: What the commands call it.
        title: What people call it, and whom to cite.
        url: The publisher's address of the one file to download.
        md5: Checksum of that file.
        size: Its number of bytes, as far as the publisher says.
        folder: What it unpacks to; a single file goes there under its own name.
        files: Checksums of what must be in the folder; None where only the content is checked.
        unpacked_limit: More bytes than this do not come from the publisher.
    """

    name: str
    title: str
    url: str
    md5: str
    size: int
    folder: str
    files: Mapping[str, str | None] = field(default_factory=dict)
    unpacked_limit: int = 1_000_000_000

    @property
    def archive(self) -> str:
        """The name of the downloaded file."""
        return self.url.partition("?")[0].rpartition("/")[2]

    def archive_path(self, root: Path) -> Path:
        """Where the downloaded file is kept until it is unpacked."""
        return root / DOWNLOADS / self.archive

    def missing(self, root: Path) -> list[Path]:
        """Files and folders that should be there and are not."""
        wanted = [root / self.folder, *(root / self.folder / name for name in self.files)]
        return [path for path in wanted if not path.exists()]


_CIFAR10 = {
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_CIFAR100 = {
    "meta": "7973b15100ade9c7d40fb424638fde48",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_CIFAR10_C = {
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
    "labels": "c439b113295ed5254878798ffe28fd54",
}
_CIFAR100_C = {
    "brightness": "f22d7195aecd6abb541e27fca230c171",
    "contrast": "322bb385f1d05154ee197ca16535f71e",
    "defocus_blur": "d923e3d9c585a27f0956e2f2ad832564",
    "elastic_transform": "a0792bd6581f6810878be71acedfc65a",
    "fog": "4efc7ebd5e82b028bdbe13048e3ea564",
    "frost": "3a39c6823bdfaa0bf8b12fe7004b8117",
    "gaussian_noise": "ecc4d366eac432bdf25c024086f5e97d",
    "glass_blur": "0bf384f38e5ccbf8dd479d9059b913e1",
    "impulse_noise": "3b3c210ddfa0b5cb918ff4537a429fef",
    "jpeg_compression": "c851b7f1324e1d2ffddeb76920576d11",
    "motion_blur": "732a7e2e54152ff97c742d4c388c5516",
    "pixelate": "96c00c60f144539e14cffb02ddbd0640",
    "shot_noise": "b0a1fa6e1e465a747c1b204b1914048a",
    "snow": "0237be164583af146b7b144e73b43465",
    "zoom_blur": "0204613400c034a81c4830d5df81cb82",
    "labels": "bb4026e9ce52996b95f439544568cdb2",
}


def _arrays(checksums: Mapping[str, str]) -> dict[str, str | None]:
    assert set(checksums) == {*KINDS, "labels"}
    return {f"{name}.npy": md5 for name, md5 in checksums.items()}


DATA_SETS = (
    DataSet(
        name="cifar10",
        title="CIFAR-10 (Krizhevsky, 2009)",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        size=170_498_071,
        folder="cifar-10-batches-py",
        files=_CIFAR10,
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100 (Krizhevsky, 2009)",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        size=169_001_437,
        folder="cifar-100-python",
        files=_CIFAR100,
    ),
    DataSet(
        name="cifar10-c",
        title="CIFAR-10-C (Hendrycks and Dietterich, 2019)",
        url="https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",
        md5="56bf5dcef84df0e2308c6dcbcbbd8499",
        size=2_918_471_680,
        folder="CIFAR-10-C",
        files=_arrays(_CIFAR10_C),
        unpacked_limit=4_000_000_000,
    ),
    DataSet(
        name="cifar100-c",
        title="CIFAR-100-C (Hendrycks and Dietterich, 2019)",
        url="https://zenodo.org/records/3555552/files/CIFAR-100-C.tar?download=1",
        md5="11f0ed0f1191edbf9fa23466ae6021d3",
        size=2_918_473_216,
        folder="CIFAR-100-C",
        files=_arrays(_CIFAR100_C),
        unpacked_limit=4_000_000_000,
    ),
    DataSet(
        name="svhn",
        title="SVHN, test digits (Netzer et al., 2011; non-commercial use)",
        url="http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
        md5="eb5a983be6a315427106f1b164d9cef3",
        size=64_275_384,
        folder="svhn",
        files={"test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
    ),
    DataSet(
        name="lsun",
        title="LSUN, resized to 32×32 (Yu et al., 2015; Liang et al., 2018)",
        url="https://www.dropbox.com/s/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1",
        md5="278b7b31c8cb7e804a1465a8ce03a2dc",
        size=0,
        folder="LSUN_resize",
    ),
    DataSet(
        name="imdb",
        title="IMDB, Large Movie Review Dataset (Maas et al., 2011)",
        url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        md5="7c2ac02c03563afcf9b574c7e56c153a",
        size=84_125_825,
        folder="aclImdb",
        files={"train/neg": None, "train/pos": None, "test/neg": None, "test/pos": None},
    ),
    DataSet(
        name="cola",
        title="CoLA, Corpus of Linguistic Acceptability (Warstadt et al., 2018)",
        url="https://nyu-mll.github.io/CoLA/cola_public_1.1.zip",
        md5="9f6d88c3558ec424cd9d66ea03589aba",
        size=0,
        folder="cola_public",
        files={
            "raw/in_domain_train.tsv": None,
            "raw/in_domain_dev.tsv": None,
            "raw/out_of_domain_dev.tsv": None,
        },
    ),
)


def find(names: list[str]) -> list[DataSet]:
    """The data sets of these names; all of them for no names."""
    known = {data_set.name: data_set for data_set in DATA_SETS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            f"a data set must be one of {', '.join(known)}; got {', '.join(unknown)}. "
            "(digits come with scikit-learn and need no file.)"
        )
    return [known[name] for name in names] if names else list(DATA_SETS)
