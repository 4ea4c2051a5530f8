"""The one exception that means: the person at the keyboard can mend this."""

import difflib
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what was given to us: an argument, a configuration, a file.

    Its message says what was expected, what came and what to do. The command line prints
    the message alone and exits with code 2; anything else is a bug and keeps its traceback.
    """


def printable(text: str) -> str:
    r"""Text that a terminal only shows: what would command it is written out, as in `\x1b`.

    Control characters and those that reverse the direction of writing come from names and texts
    of others; lines and tabs stay.
    """
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def near_miss(name: str, known: Iterable[str]) -> str:
    """A question after the known name that was probably meant; nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""
