"""Which data sets there are, where their publishers keep them and how to know the real ones."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kepsvgp.errors import UserError, near_miss

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
        folder: What it unpacks to; a single file goes there under its own name.
        size: Its number of bytes; 0 where the publisher does not say.
        files: Checksums of what must be in the folder; empty where only the content is checked.
        unpacked_bytes: More than this do not come from the publisher.
    """

    name: str
    title: str
    url: str
    md5: str
    folder: str
    size: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    unpacked_bytes: int = 1_000_000_000

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


_LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DATA_SETS = tuple(DataSet(name, **about) for name, about in _LISTED.items())


def find(names: list[str]) -> list[DataSet]:
    """The data sets of these names; all of them for no names."""
    known = {data_set.name: data_set for data_set in DATA_SETS}
    for name in names:
        if name not in known:
            raise UserError(
                f"a data set must be one of {', '.join(known)}; got {name}."
                f"{near_miss(name, known)} (digits come with scikit-learn and need no file.)"
            )
    return [known[name] for name in names] if names else list(DATA_SETS)
