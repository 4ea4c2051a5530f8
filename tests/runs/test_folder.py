from pathlib import Path

import pytest
from datafiles import write_vocabulary

from kepsvgp.config.file import parse_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.files import PART
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import make_record


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run on texts, with a vocabulary of its own."""
    rows = [f"{'a cat' if k % 2 else 'the dog'},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *rows]))
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", "the cat a dog")
    data = {"name": "csv", "path": tmp_path / "own.csv", "root": tmp_path / "cache"}
    return parse_config({"data": data | {"vocabulary": vocabulary}})


def begin(config: RunConfig, out: Path) -> RunFolder:
    run = RunFolder(out)
    with run.opened(config, make_record(load_benchmark(config.data)), resume=False):
        return run


def test_another_vocabulary_is_refused_by_name(config, tmp_path: Path) -> None:
    run = begin(config, tmp_path / "run")
    run.benchmark()
    words = (tmp_path / "vocab.txt").read_text().split("\n")
    words[-2], words[-3] = words[-3], words[-2]
    (tmp_path / "vocab.txt").write_text("\n".join(words))

    for read in (run.benchmark, run.check_outside):
        with pytest.raises(UserError, match=r"vocab\.txt must be as it was"):
            read()


@pytest.mark.parametrize(
    "changed", ["config.json", "model.safetensors", "model.safetensors.index.json", "vocab.txt"]
)
def test_another_encoder_is_refused_by_name(changed, config, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
        (folder / name).write_text("one")
    write_vocabulary(folder / "vocab.txt", "the cat a dog")
    record = make_record(load_benchmark(config.data))
    data = config.data.model_copy(update={"encoder": str(folder), "vocabulary": None})
    run = RunFolder(tmp_path / "run")
    with run.opened(config.model_copy(update={"data": data}), record, resume=False):
        run.check_outside()
    (folder / changed).write_text("other")

    with pytest.raises(UserError, match=f"{changed} must be as it was"):
        run.check_outside()


def test_only_own_leftovers_are_removed_from_a_new_folder(config, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / ".mine").mkdir(parents=True)
    foreign = [out / ".notes.part", out / ".mine" / ".thesis.part"]
    for path in foreign:
        path.write_text("precious")
    (out / f".config.toml.x{PART}").mkdir()
    (out / ".link.part").symlink_to(out / ".mine")

    run = begin(config, out)

    assert run.config().data.name == "csv"
    assert [path.read_text() for path in foreign] == ["precious"] * 2
    assert (out / ".link.part").is_symlink()
    assert not (out / f".config.toml.x{PART}").exists()
