"""Downloads a file so that no interruption costs more than what was under way.

Bytes go to `NAME.part`, which is continued where it ends, by a later attempt or a later run.
The file has its name only when it is whole and its checksum is right.
"""

import hashlib
import http.client
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kepsvgp.errors import UserError

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60.0
# attempts in a row that bring not one byte
_ATTEMPTS = 4
_FAILURES = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)

# called with the bytes that are there and the bytes that there will be (0 if unknown)
OnProgress = Callable[[int, int], None]


class Unreachable(Exception):
    """The file could not be had; the message says why."""


def download(
    url: str,
    path: Path,
    *,
    md5: str,
    on_progress: OnProgress = lambda done, total: None,
    pause_seconds: float = 1.0,
) -> None:
    """Puts the file at `url` to `path`, or raises and leaves what it has for the next time.

    The pause between two attempts is longer after each that brought nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _continue(url, part, on_progress):
                break
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            # asking again does not help with what the server refuses
            if error.code < 500 and error.code != 429:
                raise Unreachable(f"the server answered {error.code} {error.reason}") from None
            reason = f"the server answered {error.code} {error.reason}"
        except _FAILURES as error:
            cause = getattr(error, "reason", error)
            reason = str(cause) or type(cause).__name__
            if isinstance(cause, socket.gaierror):
                # there is no network, or no such server
                raise Unreachable(reason) from None
        gained = (part.stat().st_size if part.exists() else 0) > before
        failures = 0 if gained else failures + 1
        if failures >= _ATTEMPTS:
            raise Unreachable(reason)
        time.sleep(pause_seconds * 2**failures)
    actual = md5_of(part)
    if actual != md5:
        part.unlink()
        raise UserError(
            f"{url} must have the checksum (md5) {md5}; what came has {actual} and was deleted. "
            "Try again; if it stays so, the publisher has another file there."
        )
    part.replace(path)


def _continue(url: str, part: Path, on_progress: OnProgress) -> bool:
    """Appends what the server sends to `part`; whether it is whole then."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "kepsvgp"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # nothing lies behind what we have: it is whole, or of another file
        if error.code == 416 and have:
            total = error.headers.get("Content-Range", "").rpartition("/")[2]
            if total == str(have):
                return True
            part.unlink()
            return False
        raise
    with response:
        span = response.headers.get("Content-Range", "")
        resumed = response.status == 206 and span.startswith(f"bytes {have}-")
        if not resumed:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else 0
        _check_room(part, total - have)
        with part.open("ab" if resumed else "wb") as sink:
            while chunk := response.read(_CHUNK):
                sink.write(chunk)
                have += len(chunk)
                on_progress(have, total)
        return not total or have >= total


def _check_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise UserError(
            f"{part.parent} must have room for {needed / 1e6:.0f} MB; {free / 1e6:.0f} MB are free."
        )


def md5_of(path: Path) -> str:
    """The checksum of a file, which tells damage, not malice."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
