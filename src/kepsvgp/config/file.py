"""Configurations as TOML files with overrides, and mistakes in them as one clear message."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kepsvgp.config.plugins import section_kinds
from kepsvgp.config.sections import ModelConfig, RunConfig
from kepsvgp.config.shipped import shipped_configs
from kepsvgp.config.variants import variant_settings
from kepsvgp.errors import UserError, near_miss
from kepsvgp.files import check_name


def load_config(
    source: Path | str, overrides: Sequence[str] = (), *, variant: str = "ours"
) -> RunConfig:
    """The configuration in a TOML file, or a shipped one by name, with `key=value` overrides.

    A `variant` of the paper's changes it first; see `kepsvgp.config.variants`.
    """
    path = find_config(source)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must hold valid TOML; it does not: {error}.") from None
    for override in overrides:
        _apply(values, override)
    if variant != "ours":
        # by the data and the method that were asked for, whose own settings then win
        config = parse_config(values, origin=str(path))
        for override in (*variant_settings(variant, config), *overrides):
            _apply(values, override)
    return parse_config(values, origin=" ".join([str(path), *(f"with {o}" for o in overrides)]))


def find_config(source: Path | str) -> Path:
    """The file that `source` means: a path, or the name of a configuration that we ship."""
    path = Path(source)
    if path.is_file():
        return path
    shipped = shipped_configs()
    if str(source) in shipped:
        return shipped[str(source)]
    raise UserError(
        f"CONFIG must be a TOML file or one of {', '.join(shipped) or '(none shipped)'}; "
        f"there is no {source}.{near_miss(str(source), shipped)}"
    )


def parse_config(values: Mapping[str, Any], *, origin: str = "configuration") -> RunConfig:
    """A checked configuration; every mistake in it is named by its field in one `UserError`."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problems = [_explain(details) for details in error.errors()]
    raise UserError(f"{origin}: " + "; ".join(problems))


def dump_config(config: RunConfig) -> str:
    """The complete configuration as TOML; what is None is left out, as TOML has no null."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _apply(values: dict[str, Any], override: str) -> None:
    """Sets one value in place, from `section.key=value`."""
    check_name(Path(override))
    name, equals, text = override.partition("=")
    place = name.strip().split(".")
    *sections, key = place
    if not equals or not key:
        raise UserError(f"an override must read section.key=value; got {override!r}.")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"{name} must name a value in a section; {section} is no section.")
    value = _value(text.strip())
    # a folder or a column may be called 2024
    values[key] = value if isinstance(value, str) or not _is_text(place) else text.strip()


def _value(text: str) -> Any:
    """A TOML value where it is one, else the text itself, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _is_text(place: Sequence[str]) -> bool:
    """Whether a field holds a place on disk or another name."""
    names, section = _place(tuple(place[:-1]))
    if section is None or len(names) == len(place):
        return False
    kind = _fields(section, place[-1]).get(place[-1])
    return not {kind, *get_args(kind)}.isdisjoint({Path, str})


def _explain(details: ErrorDetails) -> str:
    """One mistake in plain words, named by its field."""
    # pydantic appends the branch of a union to the place of an error
    place, model = _place(details["loc"])
    field = ".".join(place)
    match details["type"]:
        case "extra_forbidden":
            known = list(_fields(model)) if model else []
            hint = near_miss(place[-1], known) or f" Known are {', '.join(known)}."
            return f"{field} is no known key.{hint}"
        case "value_error":
            message = str(details.get("ctx", {}).get("error", details["msg"]))
            # a section's own mistakes name its fields
            return f"{field}{'.' if model else ': '}{message}" if field else message
        case _:
            expected = details["msg"][0].lower() + details["msg"][1:]
            return f"{field}: {expected}; got {details['input']!r}"


def _place(location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel] | None]:
    """The part of an error's place that names fields, and the section it is in."""
    names: list[str] = []
    section: type[BaseModel] | None = RunConfig
    for part in map(str, location):
        if section is None:
            break
        names.append(part)
        fields = _fields(section, part)
        if part not in fields:
            return names, section
        section = _section(fields[part])
    return names, section


def _fields(section: type[BaseModel], *wanted: str) -> dict[str, Any]:
    """The types of a section's keys; those of a model are also the sections of methods."""
    own = {name: field.annotation for name, field in section.model_fields.items()}
    return own | section_kinds(wanted) if section is ModelConfig else own


def _section(annotation: Any) -> type[BaseModel] | None:
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section else None
