"""Two configurations side by side: their settings by dotted name, and where they differ."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kepsvgp.files import absolute

if TYPE_CHECKING:
    from kepsvgp.config.sections import RunConfig

# the encoder that comes with a package
MINILM = "minilm"

# where data lie, where a run is computed and how it is watched do not make it another
FREE = frozenset(("data.root", "train.device", "train.save_steps", "train.tensorboard"))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def differences(one: "RunConfig", other: "RunConfig") -> list[str]:
    """Names of the settings that make two runs of these configurations different ones."""
    mine, theirs = one.identity(), other.identity()
    return [name for name in mine | theirs if mine.get(name) != theirs.get(name)]


def other_inputs(one: "RunConfig", other: "RunConfig") -> list[str]:
    """Settings that make other inputs of the same examples in two configurations."""
    names = ("max_length", "vocabulary", "encoder", "image_size", "grayscale")
    changed = differences(with_absolute_paths(one), with_absolute_paths(other))
    return [name for name in changed if name.removeprefix("data.") in names]


def with_absolute_paths(config: "RunConfig") -> "RunConfig":
    """The configuration with the places of its data as they are from every folder."""
    places = ("root", "path", "vocabulary")
    given = {name: place for name in places if (place := getattr(config.data, name)) is not None}
    found: dict[str, Any] = {name: absolute(place) for name, place in given.items()}
    encoder = config.data.encoder
    # one that is no folder is a name
    if encoder is not None and encoder != MINILM and absolute(encoder).is_dir():
        found["encoder"] = str(absolute(encoder))
    return config.model_copy(update={"data": config.data.model_copy(update=found)})
