"""What others build on, recorded: it changes only with a line in the changelog."""

import doctest
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import typer

import kepsvgp
from kepsvgp.cli import app

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "public_names.txt"


def commands(group: typer.Typer, prefix: str = "kepsvgp") -> set[str]:
    """The full names of all commands, those of groups included."""
    found = set()
    for command in group.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        found.add(f"{prefix} {name}")
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        found |= commands(inner.typer_instance, f"{prefix} {inner.typer_instance.info.name}")
    return found


def public_names() -> set[str]:
    return commands(app) | {f"kepsvgp.{name}" for name in kepsvgp._PUBLIC}


def newest() -> str:
    """The part of the changelog about the newest version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.split(r"^## ", text, flags=re.MULTILINE)[1]


def is_named(name: str, text: str) -> bool:
    """Whether the text names it: a command in full, `data fetch` also as `data list | fetch`."""
    last = re.split(r"[ .]", name)[-1]
    if name.startswith("kepsvgp "):
        first = name.split(" ")[1]
        return bool(re.search(rf"`kepsvgp {first}\b[^`]*`", text)) and last in text
    return bool(re.search(rf"`[^`]*\b{last}\b[^`]*`", text))


def test_public_names_are_those_on_record() -> None:
    recorded = RECORD.read_text().splitlines()
    assert recorded == sorted(set(recorded))
    changed = public_names() ^ set(recorded)
    missing = [name for name in sorted(changed) if not is_named(name, newest())]

    assert not missing, (
        f"{', '.join(missing)} came or went: others build on it. Say so at the top of CHANGELOG.md."
    )
    assert not changed, (
        f"{', '.join(sorted(changed))} came or went and the changelog says so: now write it into "
        f"{RECORD.relative_to(ROOT)} or take it out."
    )


@pytest.mark.parametrize("name", sorted(public_names()))
def test_public_name_is_in_the_changelog(name) -> None:
    assert is_named(name, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(kepsvgp._PUBLIC))
def test_public_name_can_be_imported_and_says_what_it_is(name) -> None:
    assert (getattr(kepsvgp, name).__doc__ or "").strip()


# Lightning advises on workers, and is itself behind its libraries
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", sorted(kepsvgp._PUBLIC))
def test_public_name_has_an_example_that_runs(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {each: getattr(kepsvgp, each) for each in kepsvgp._PUBLIC}
    text, parser = inspect.getdoc(names[name]) or "", doctest.DocTestParser()
    assert parser.get_examples(text)

    examples = parser.get_doctest(f"{kepsvgp.__doc__}\n{text}", names, name, None, None)
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_a_version_has_its_part_of_the_changelog_and_is_the_one_to_cite() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", citation, re.MULTILINE))
    heading = newest().partition("\n")[0]

    assert cited["version"] == settings["project"]["version"]
    assert heading in ("Unreleased", f"{cited['version']} — {cited['date-released']}")
