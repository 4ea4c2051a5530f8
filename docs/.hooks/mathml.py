"""Turns the formulas of a page into MathML when the site is built, so that it needs no script."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    r"""The page with `\(…\)` and `\[…\]` replaced."""
    content = _BLOCK.sub(lambda match: convert(unescape(match[1]), display="block"), content)
    return _INLINE.sub(lambda match: convert(unescape(match[1])), content)
