"""The one exception that means: the person at the keyboard can mend this."""

import difflib
import inspect
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


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


def told(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A public function that says which argument is of another kind than its annotation."""
    signature = inspect.signature(function)
    hints = cache(lambda: get_type_hints(function))

    @wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            hint = hints().get(name, Any)
            is_several = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            if not is_several and not _is_of(value, hint):
                raise UserError(
                    f"{name} must be {_words(hint)}; got a {type(value).__name__}, {value!r:.80}. "
                    f"See help({function.__qualname__.removesuffix('.__init__')})."
                )
        return function(*args, **kwargs)

    return checked


def _is_of(value: object, hint: Any) -> bool:
    """Whether a value is of the kind that an annotation names, as far as its surface tells."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if hint in (int, float):
        kind = Integral if hint is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    # of tensors with axes the axes are checked where they are used
    kind = getattr(hint, "array_type", origin or hint)
    if kind is Any or not isinstance(kind, type):
        return True
    if isinstance(value, list | tuple) and kind is Sequence:
        return all(_is_of(each, *inner) for each in value)
    # text, mappings and tensors can be iterated over, but are not several of what is meant
    if kind in (Iterable, Sequence) and (
        isinstance(value, str | bytes | Mapping) or hasattr(value, "shape")
    ):
        return False
    return isinstance(value, kind)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    kind = getattr(hint, "array_type", origin or hint)
    name = {"NoneType": "None", "Module": "a model (torch.nn.Module)"}.get(kind.__name__)
    article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
    of = f" of {inner[0].__name__}" if kind is Sequence and isinstance(inner[0], type) else ""
    return name or f"{article} {kind.__name__}{of}"
