"""Gives every public module a page of its own under API, made from its docstrings."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and their entries in the navigation."""
    source = Path(config.config_file_path).parent / "src"
    pages = []
    for module in _modules(source):
        path = f"api/{module}.md"
        members = "" if module != "kepsvgp" else "\n    options:\n      members: false"
        files.append(File.generated(config, path, content=f"# {module}\n\n::: {module}{members}\n"))
        pages.append({module.removeprefix("kepsvgp."): path})
    config.nav = [*(config.nav or []), {"API": pages}]
    return files


def _modules(source: Path) -> list[str]:
    names = []
    for file in sorted((source / "kepsvgp").rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            names.append(".".join(parts))
    return sorted(names)
