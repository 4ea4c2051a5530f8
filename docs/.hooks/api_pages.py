"""Gives every public module a page of its own under API, made from its docstrings, room by room."""

import inspect
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import kepsvgp


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and their entries in the navigation."""
    package, *modules = _modules(Path(config.config_file_path).parent / "src")
    _add(files, config, package, _overview())
    rooms: list[dict[str, object]] = [{"What kepsvgp offers": _path(package)}]
    for room, members in groupby(modules, key=lambda module: module.split(".")[1]):
        pages = []
        for module in members:
            _add(files, config, module, f"::: {module}\n")
            pages.append({module.removeprefix("kepsvgp."): _path(module)})
        rooms.append({room: pages})
    config.nav = [*(config.nav or []), {"API": rooms}]
    return files


def _add(files: Files, config: MkDocsConfig, module: str, content: str) -> None:
    files.append(File.generated(config, _path(module), content=f"# {module}\n\n{content}"))


def _path(module: str) -> str:
    return f"api/{module}.md"


def _overview() -> str:
    """What `import kepsvgp` gives, each with the first line of its docstring."""
    lines = [f"{kepsvgp.__doc__}\n", "| | |", "| --- | --- |"]
    for name in kepsvgp.__all__:
        found = getattr(kepsvgp, name)
        module = found.__name__ if inspect.ismodule(found) else found.__module__
        target = module if inspect.ismodule(found) else f"{module}.{found.__qualname__}"
        summary = (inspect.getdoc(found) or "").partition("\n")[0]
        lines.append(f"| [`kepsvgp.{name}`][{target}] | {summary} |")
    return "\n".join(lines) + "\n"


def _modules(source: Path) -> list[str]:
    names = []
    for file in sorted((source / "kepsvgp").rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            names.append(".".join(parts))
    return sorted(names)
