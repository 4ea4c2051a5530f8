"""The one direction of imports: what stands left knows nothing of what stands on its right."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "kepsvgp"
# within one level, modules may use each other
ORDER = [
    {"errors", "files"},
    {"maths", "metrics", "config"},
    {"ops"},
    {"attention"},
    {"models"},
    {"inference"},
    {"conversion"},
    {"data"},
    {"runs"},
    {"training"},
    {"methods"},
    {"serving"},
    {"paper"},
    {"report"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
MATHS = {"maths", "metrics", "config"}
FOUNDATIONS = {"errors", "files"}
ANYWHERE = {"__init__", "__main__", "integrations"}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """First names, below `kepsvgp`, of everything that a file imports from us."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "kepsvgp":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kepsvgp."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            yield from (parts[1] for parts in names if parts[0] == "kepsvgp" and len(parts) > 1)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if module_of(path) not in ANYWHERE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_nothing_on_its_right(path) -> None:
    own = module_of(path)
    assert own in LEVEL, f"{own} has no place in the order of imports: give it one here"

    wrong = {name for name in imports_of(path) if LEVEL.get(name, -1) > LEVEL[own]}

    assert not wrong


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if module_of(path) in MATHS],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_maths_and_config_import_nothing_of_ours_but_each_other(path) -> None:
    assert set(imports_of(path)) <= MATHS | FOUNDATIONS


def test_importing_the_package_s_help_does_not_import_torch(tmp_path) -> None:
    import subprocess
    import sys

    code = "import sys, kepsvgp.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_contributors_are_shown_the_same_order() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    shown = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(shown) == sorted(LEVEL)
    assert [LEVEL[name] for name in shown] == sorted(LEVEL[name] for name in shown)
