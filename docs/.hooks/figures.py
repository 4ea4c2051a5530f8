"""Shows the figures of `results/` on the site, though they lie outside of the docs."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FIGURE = re.compile(r"(?<=\]\()\.\./(results/[^)]+\.svg)(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the figures, under the path that they have in the repository."""
    root = Path(config.config_file_path).parent
    for path in sorted(root.glob("results/*/figures/*.svg")):
        name = path.relative_to(root).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to them there."""
    del page, config, files
    return FIGURE.sub(r"\1", markdown)
