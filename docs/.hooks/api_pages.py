"""Makes the API pages from docstrings: the public names on one, and one for each room."""

import inspect
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import kepsvgp

PUBLIC = "api/kepsvgp.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and their entries in the navigation."""
    files.append(File.generated(config, PUBLIC, content=_public_names()))
    modules = _modules(Path(config.config_file_path).parent / "src")
    rooms = []
    for room, members in groupby(modules, key=lambda module: module.split(".")[1]):
        parts = "\n".join(f"::: {module}\n" for module in members)
        files.append(File.generated(config, f"api/{room}.md", content=f"# {room}\n\n{parts}"))
        rooms.append({room: f"api/{room}.md"})
    config.nav = [*(config.nav or []), {"API": [{"Public names": PUBLIC}, {"Internals": rooms}]}]
    return files


def _public_names() -> str:
    """What `import kepsvgp` gives: a line for each, then each in full."""
    lines = [f"# kepsvgp\n\n{kepsvgp.__doc__}\n", "| name | what it is |", "| --- | --- |"]
    details = []
    for name in sorted(kepsvgp._PUBLIC):
        found = getattr(kepsvgp, name)
        target = f"{found.__module__}.{found.__qualname__}"
        summary = (inspect.getdoc(found) or "").partition("\n")[0]
        lines.append(f"| [`{name}`](#kepsvgp.{name}) | {summary} |")
        details.append(
            f'<a id="kepsvgp.{name}"></a>\n\n::: {target}\n'
            "    options: {heading_level: 2, show_root_full_path: false}\n"
        )
    return "\n".join([*lines, "", *details])


def _modules(source: Path) -> list[str]:
    """All modules but the package itself, its `__main__` and hidden ones, by name."""
    names = set()
    for file in (source / "kepsvgp").rglob("*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if len(parts) > 1 and not any(part.startswith("_") for part in parts):
            names.add(".".join(parts))
    return sorted(names)
