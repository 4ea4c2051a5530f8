"""What the pages show is true: their Python runs, and their commands are ones that we have."""

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click import Command, Context, Group

from kepsvgp.cli import app
from kepsvgp.metrics import ood_metrics
from tools import tutorials

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# a block of Python, and where one follows, the block of what it prints
PROGRAM = re.compile(
    r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?%?")
# in a block of a shell, indented, or in backticks
COMMAND = re.compile(r"(?:^|`|-m )(kepsvgp [a-z][^`\n]*)", re.MULTILINE)
PLACEHOLDER = re.compile(r"[|\[\]{}]")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line number and text of each block in a language."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(2)), match[2])
        for match in BLOCK.finditer(text)
        if match[1] == language
    ]


def programs(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Line number and text of each block of Python, and the output that the page shows below."""
    text = page.read_text(encoding="utf-8")
    for match in PROGRAM.finditer(text):
        yield text.count("\n", 0, match.start(1)), match[1], match[2]


def assert_printed(printed: str, shown: str) -> None:
    """The same words, and numbers that another processor may round and train a little otherwise."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split(), printed
    for found, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        percent = 100 if expected.endswith("%") else 1
        value, wanted = float(found.rstrip("%")), float(expected.rstrip("%"))
        assert value == pytest.approx(wanted, rel=0.05, abs=0.02 * percent), printed


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def digits_vit(tmp_path_factory) -> Path:
    """The model that the README and the tutorials begin with."""
    folder = tmp_path_factory.mktemp("model") / "digits-vit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["digits_vit.py", str(folder)])
        runpy.run_path(str(ROOT / "examples" / "digits_vit.py"))
    return folder


def keeps_the_risk_that_was_promised(names: dict[str, Any]) -> None:
    wrong, answered, rule = (names[name] for name in ("wrong", "answered", "rule"))
    assert answered.float().mean() > 0.5
    assert wrong[answered].float().mean() <= rule.max_risk < wrong.float().mean()


def novelty_beats_confidence_on_negatives(names: dict[str, Any]) -> None:
    digits, found = names["familiar"], names["ask"](names["inputs"]["negatives"])
    by_confidence, by_novelty = (
        ood_metrics(*scores, positive="out")["ood_auroc"]
        for scores in (
            (-digits.confidence, -found.confidence),
            (digits.novelty, found.novelty),
        )
    )
    assert by_novelty > by_confidence + 0.1
    assert names["rule"].foreign(digits).float().mean() < 0.1


def temperature_has_the_better_nll(names: dict[str, Any]) -> None:
    """And nobody the better ranking; the text says so."""
    found = names["differences"]
    assert found["temperature"]["nll"].high < 0 < found["posterior"]["nll"].low
    assert all(each["aurc"].low < 0 < each["aurc"].high for each in found.values())


# what the text of a page says of what its program prints
OUTCOMES = {
    "docs/tutorials/abstain.md": keeps_the_risk_that_was_promised,
    "docs/tutorials/foreign.md": novelty_beats_confidence_on_negatives,
    "docs/tutorials/compare.md": temperature_has_the_better_nll,
}


# other people's trainers warn of few workers, and of each other
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name_of)
def test_python_of_the_page_runs(page: Path, tmp_path, monkeypatch, capsys, request) -> None:
    monkeypatch.chdir(tmp_path)
    if '"digits-vit"' in page.read_text(encoding="utf-8"):
        shutil.copytree(request.getfixturevalue("digits_vit"), "digits-vit")
    # examples may show data that come along, and never the machine's own
    monkeypatch.setenv("KEPSVGP_DATA", str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}

    for line, code, shown in programs(page):
        capsys.readouterr()
        # the empty lines give a traceback the numbers of the page
        exec(compile("\n" * line + code, name_of(page), "exec"), names)
        if shown is not None:
            assert_printed(capsys.readouterr().out, shown)
    OUTCOMES.get(name_of(page), lambda _: None)(names)
    if page.parent.name == "tutorials":
        assert tutorials.FIGURES[page.stem](names).axes
        assert f"tutorial-{page.stem}.svg" in page.read_text(encoding="utf-8")


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    for line in text.split("\n"):
        for match in COMMAND.finditer(line.removeprefix("    ")):
            if not PLACEHOLDER.search(match[1]):
                words = shlex.split(match[1], comments=True)
                ends = [i for i, word in enumerate(words) if word in (">", "2>", "&&", "|", "&")]
                yield match[1], words[1 : min(ends, default=len(words))]


ALL = [(name_of(page), *command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "shown", "words"), ALL, ids=lambda value: str(value)[:50])
def test_command_of_the_page_is_one_of_ours(page: str, shown: str, words: list[str]) -> None:
    command: Command = typer.main.get_command(app)
    context: Context | None = None
    while isinstance(command, Group):
        with command.make_context(command.name, words[:1], parent=context) as context:
            _, found, _ = command.resolve_command(context, words)
        assert found is not None
        command, words = found, words[1:]
    if words:
        # parses, and does not run
        command.make_context(command.name, words, parent=context).close()


def test_pages_show_commands_and_code() -> None:
    pages = {page for page, _, _ in ALL}
    assert {"README.md", "docs/guides/train-text.md"} <= pages
    assert len(ALL) > 20
