"""Stops the build at a page with next to nothing on it, as where a template or a module fails."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

LEAST = 20


def on_page_content(content: str, page: Any, **_: Any) -> None:
    """Counts the words of the page without its markup."""
    words = re.sub(r"<[^>]+>", " ", content).split()
    if len(words) < LEAST:
        raise PluginError(f"{page.file.src_uri} must have {LEAST} words; it has {len(words)}.")
