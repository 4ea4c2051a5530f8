"""Gets a data set from its publisher into the folder of data sets."""

import shutil
import urllib.parse
from pathlib import Path

from kepsvgp.data.download import archive
from kepsvgp.data.download.catalogue import DataSet
from kepsvgp.data.download.web import OnProgress, Unreachable, download, md5_of
from kepsvgp.errors import UserError
from kepsvgp.files import replacing


def fetch(
    data_set: DataSet,
    root: Path,
    *,
    url: str | None = None,
    keep: bool = False,
    on_progress: OnProgress = lambda done, total: None,
    pause_seconds: float = 1.0,
) -> bool:
    """Downloads and unpacks a data set; False if it was there already.

    An archive that someone has put to its place is used instead of a download, if its checksum
    is right. `url` is another address of the same file; `keep` keeps it when it is unpacked.
    """
    if not data_set.missing(root):
        return False
    path = data_set.archive_path(root)
    address = url or data_set.url
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise UserError(f"an address must begin with http:// or https://; got {address}.")
    given = path.exists()
    if not given:
        try:
            how = {"on_progress": on_progress, "pause_seconds": pause_seconds}
            download(address, path, md5=data_set.md5, **how)
        except Unreachable as error:
            raise UserError(
                f"{address} could not be downloaded ({error}). Try again, and it goes on where it "
                f"stopped. Without a network: get this file elsewhere (md5 {data_set.md5}), put it "
                f"to {path} and run `kepsvgp data fetch {data_set.name}` again."
            ) from None
    elif (actual := md5_of(path)) != data_set.md5:
        raise UserError(
            f"{path} must have the checksum (md5) {data_set.md5} of the publisher's file; it has "
            f"{actual}. Delete it and try again."
        )
    if path.suffix in (".gz", ".tar", ".tgz", ".zip"):
        archive.extract(path, root, data_set.folder, most_bytes=data_set.unpacked_bytes)
    else:
        with replacing(root / data_set.folder / path.name) as temporary:
            shutil.copyfile(path, temporary)
    missing = data_set.missing(root)
    if missing:
        raise UserError(f"{path} must contain {missing[0].relative_to(root)}; it does not.")
    # what someone else put there is theirs
    if not keep and not given:
        path.unlink()
    return True
