"""Methods and data sets by name: ours, those of installed packages, and anybody's own.

A name is one of ours, one that a package declares as an entry point of `kepsvgp.methods` or
`kepsvgp.datasets`, or a place such as `package.module:Class`. Nothing is imported before it is
asked for.
"""

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from kepsvgp.errors import UserError, near_miss

Group = Literal["kepsvgp.methods", "kepsvgp.datasets"]

# what trains a network, and what is fitted to a trained one
TRAINED = {
    "msp": "kepsvgp.methods.msp:MSP",
    "kep": "kepsvgp.methods.kep:KEP",
    "sgpa": "kepsvgp.methods.sgpa:SGPA",
    "primal": "kepsvgp.methods.primal:Primal",
    "sngp": "kepsvgp.methods.sngp:SNGP",
    "svdkl": "kepsvgp.methods.svdkl:SVDKL",
    "matched_noise": "kepsvgp.methods.matched_noise:MatchedNoise",
}
POST_HOC = {
    "temperature": "kepsvgp.methods.temperature:Temperature",
    "mc_dropout": "kepsvgp.methods.mc_dropout:Dropout",
    "kfllla": "kepsvgp.methods.kfllla:LastLayerLaplace",
    "ensemble": "kepsvgp.methods.ensemble:DeepEnsemble",
    "refitted": "kepsvgp.methods.refitted:Refitted",
}
DATASETS = {
    "digits": "kepsvgp.data.sets.digits:load",
    "cifar10": "kepsvgp.data.sets.cifar:load",
    "cifar100": "kepsvgp.data.sets.cifar:load",
    "imdb": "kepsvgp.data.sets.imdb:load",
    "cola": "kepsvgp.data.sets.cola:load",
    "images": "kepsvgp.data.sets.images:load",
    "csv": "kepsvgp.data.sets.table:load",
}
_OURS: dict[Group, dict[str, str]] = {
    "kepsvgp.methods": TRAINED | POST_HOC,
    "kepsvgp.datasets": DATASETS,
}


# methods that were asked for in this process: a configuration may have a section for them
_MET: dict[str, Any] = {}


_WORDS: dict[Group, str] = {"kepsvgp.methods": "a method", "kepsvgp.datasets": "a data set"}


@cache
def places(group: Group) -> dict[str, str]:
    """Where everything with a name is; ours cannot be taken by others."""
    return {point.name: point.value for point in entry_points(group=group)} | _OURS[group]


def find(group: Group, name: str) -> Any:
    """What has a name, or stands in a place such as `package.module:Class`."""
    place = places(group).get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        known = places(group)
        raise UserError(
            f"{_WORDS[group]} must be one of {', '.join(known)}, or a place such as module:Name; "
            f"got {name!r}.{near_miss(name, known)}"
        )
    # a module beside the command is found, as `python -m` would find it
    if "" not in sys.path:
        sys.path.append("")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{place} must be importable; it is not ({error}).") from None
    if group == "kepsvgp.methods":
        _MET[found.name] = found
    return found


def short_name(place: str) -> str:
    """The last part of a place, for file names; a name is its own."""
    return place.rpartition(":")[2]


def find_method(name: Any, *, on: str = "msp") -> Any:
    """A method by its name, such as `kep`, `temperature` or `kep+temperature`, or by its class.

    Args:
        name: What a configuration or a command says, a class of `kepsvgp.methods.base.Method`, or
            a method itself, which is given back.
        on: What a post-hoc method that is named alone is fitted to.
    """
    if not isinstance(name, str):
        return name() if isinstance(name, type) else name
    base, plus, top = name.rpartition("+")
    kind = find("kepsvgp.methods", top)
    if not kind.is_post_hoc and not plus:
        return kind()
    is_named = bool(base) or not plus
    if (
        kind.is_post_hoc
        and is_named
        and not (below := find("kepsvgp.methods", base or on)).is_post_hoc
    ):
        return kind(below())
    raise UserError(
        f"a method must be trained, or fitted to a trained one as in kep+temperature; got {name!r}."
    )


def find_asked(trained: str, result: str) -> Any:
    """The method by which results of a run of `trained` are called so."""
    own = find_method(trained)
    return own if result == own.name else find_method(result.rpartition("+")[2], on=trained)


def place_of(kind: type) -> str:
    """The name by which `find` finds a method's class: short where it has one, else its place."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    name = getattr(kind, "name", "")
    found = name if places("kepsvgp.methods").get(name) == place else place
    if find("kepsvgp.methods", found) is not kind:
        raise UserError(f"a method must be a class at the top of a module; got {place}.")
    return found


def section_kinds(wanted: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of our methods by the name of their section, and those of others if wanted."""
    known = places("kepsvgp.methods")
    for name in (*TRAINED, *wanted):
        if name in known and name not in _MET:
            find("kepsvgp.methods", name)
    names = (name for name in dict.fromkeys((*TRAINED, *wanted)) if name in _MET)
    return {name: _MET[name].section for name in names if _MET[name].section is not None}
