"""The guide's own method and data set, in everything that compares: what it shows is what runs."""

import re
import sys
from pathlib import Path

import pytest
from commands import call

from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method, place_of
from kepsvgp.data import load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.methods.compare import compare
from kepsvgp.runs.folder import RunFolder

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"
FEW = ("train.epochs=1", "model.depth=1", "prediction.num_samples=2")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two files of the guide, as a user has them."""
    blocks = dict(reversed(re.findall(r"^```(\w+)\n(.*?)^```", GUIDE.read_text(), re.M | re.S)))
    code = [line for line in blocks["python"].splitlines() if line.strip()]
    assert len(code) <= 40
    (tmp_path / "mine.py").write_text(blocks["python"])
    (tmp_path / "mine.toml").write_text(blocks["toml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_own_method_and_data_are_compared_and_reported(mine, capsys) -> None:
    methods = "msp,mine:Cosine,mine:Cosine+temperature"
    options = ("--methods", methods, "--out", "out")

    assert call("compare", "mine.toml", *FEW, *options) == 0

    printed = capsys.readouterr().out
    assert all(title in printed for title in ("MSP", "Cosine head", "Cosine head + Temperature"))
    run = RunFolder(mine / "out" / "cosine-0")
    assert run.config().method == "mine:Cosine"
    assert run.config().model.cosine.scale == 5.0
    # a run of another method does not know of it, so that it can be read without the module
    assert not hasattr(RunFolder(mine / "out" / "msp-0").config().model, "cosine")
    assert run.metrics()["score"].keys() == {"cosine", "cosine+temperature"}

    assert call("report", "out", "--out", "page.html") == 0
    assert "Cosine head + Temperature scaling" in (mine / "page.html").read_text()


def test_own_method_is_a_row_of_the_paper_s_table(mine, capsys) -> None:
    rows = ("--rows", "msp,mine:Cosine", "--seeds", 1, "--out", "out", "--config", "mine.toml")

    assert call("reproduce", "table1", *FEW, *rows) == 0

    assert "Cosine head" in capsys.readouterr().out
    (page,) = (mine / "out").glob("report-*.html")
    assert "Cosine head" in page.read_text()


def test_class_is_as_good_as_its_name(mine) -> None:
    kind = type(find_method("mine:Cosine"))
    config = load_config("mine.toml", FEW)

    found = compare(config, load_benchmark(config.data), mine / "out", methods=[kind])

    assert list(found.results) == ["cosine"]
    assert found.titles == {"cosine": "Cosine head"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.cosine.scael=1", r"model\.cosine\.scael is no known key\. Did you mean scale"),
        ("model.cosine.scale=-1", r"model\.cosine\.scale: .*greater than 0"),
        ("model.sine.scale=1", r"model\.sine is no known key"),
        ("data.name=mine:dots", "mine:dots must be importable"),
    ],
)
def test_mistake_in_an_own_section_is_named(mine, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("mine.toml", ["method=mine:Cosine", change])


def test_class_that_cannot_be_found_again_is_refused(mine) -> None:
    class Local(type(find_method("mine:Cosine"))):
        pass

    with pytest.raises(UserError, match="must be"):
        place_of(Local)
