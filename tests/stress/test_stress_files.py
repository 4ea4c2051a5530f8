"""Every file that is read, cut, flipped, emptied, exchanged: refused by name, or as it was."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from breaking import CONFIG, assert_explained, many, run_command
from commands import small
from datafiles import TINY10, write_cola, write_python, write_svhn, write_vocabulary
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from kepsvgp import convert
from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.conversion import load_pretrained, save_pretrained
from kepsvgp.data import load_benchmark, pictures, store
from kepsvgp.data.download import archive
from kepsvgp.data.sets import cifar, cola, svhn, table
from kepsvgp.data.text import tokens
from kepsvgp.errors import UserError
from kepsvgp.files import FORMAT, read_json, write_json
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.methods.post_hoc import FITTED, read_stamp
from kepsvgp.paper import records, timing
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.runs.evaluation import evaluate
from kepsvgp.runs.folder import RunFolder
from kepsvgp.serving import rows
from kepsvgp.training.loop import train
from kepsvgp.training.state import Position, load_position

# one worker makes the files that they share
pytestmark = pytest.mark.xdist_group("files")


class Kind(NamedTuple):
    """A file and what is made of it."""

    path: Path
    read: Callable[[Path], Any]


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the last bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def damages(content: bytes, seed: int, flips: int) -> Iterator[bytes]:
    """Cut at every class of length, with more behind, exchanged, and with single bits flipped."""
    size = len(content)
    chance = random.Random(seed)
    lengths = {0, 1, 2, 7, 8, 9, size // 4, size // 2, 3 * size // 4, size - 9, size - 8, size - 1}
    lengths |= {chance.randrange(size) for _ in range(flips // 4)}
    yield from (content[:length] for length in sorted(lengths) if 0 <= length < size)
    yield content + b"more"
    yield bytes(size)
    yield b"\xff" * size
    yield b"{}"
    yield b"[1, 2]"
    for _ in range(flips):
        place = chance.randrange(8 * size)
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """One of everything that kepsvgp writes."""
    root = tmp_path_factory.mktemp("made")
    config = small("data.corruptions=none", "train.select=last")
    benchmark = load_benchmark(config.data)
    run = train(config, benchmark, root / "run")
    evaluate(run, benchmark, run.model("last"), method="kep", checkpoint="last", splits=("test",))
    for name in ("temperature", "kfllla"):
        find_method(name, on="kep").predictor(run, benchmark, "last")
    inspect_run(run, benchmark, checkpoint="last", split="test", examples=4)
    vocabulary = write_vocabulary(root / "vocab.txt", "the cat sat")
    torch.manual_seed(0)
    bert = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8,
    )  # fmt: skip
    model = convert(BertForSequenceClassification(bert), 1, rank=2)
    processor = BertTokenizerFast(str(vocabulary))
    save_pretrained(model, root / "converted", processor=processor)
    prediction = run.prediction("last", "kep", "test")
    Abstainer.fit(prediction, max_risk=0.5).save(root / "converted")
    tokenizer = tokens.load_tokenizer(vocabulary)
    tokens.cached_tokens(
        root / "tokens.safetensors", lambda: tokens.tokenize(tokenizer, ["the cat", "sat"], 9)
    )
    records.write_record(run, records.Record({"kep/last/test": ["test"]}, {"train": 1.0}, {}))
    times = timing.Times([0.1, 0.2], [0.3, 0.4], 5)._asdict()
    write_json(root / "times.json", {"times": {"kep": times}, "threads": 1, "device": "cpu"})
    store.cached(root / "array.npy", lambda: np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    return root


def _kept(run: RunFolder, name: str) -> dict[str, Any]:
    return load_file(run.method_folder(f"last/{name}").check(FITTED))


def never() -> Any:
    raise AssertionError("made a second time")


CONVERTED = (
    "kepsvgp.json", "model.safetensors", "manifest.json", "config.json", "tokenizer.json",
    "tokenizer_config.json",
)  # fmt: skip


def ours(made: Path) -> dict[str, Kind]:
    run = made / "run"

    def in_run(name: str, read: Callable[[RunFolder], Any]) -> Kind:
        return Kind(run / name, lambda path: read(RunFolder(run)))

    converted = made / "converted"
    return {
        "config of a run": in_run("config.toml", lambda r: (r.config().model_dump(),)),
        "record of a run": in_run("run.json", lambda r: r.record()),
        "history": in_run("history.jsonl", lambda r: r.history()),
        "metrics": in_run("metrics.json", lambda r: r.metrics()),
        "weights": in_run("checkpoints/last.safetensors", lambda r: r.model("last").state_dict()),
        "chosen weights": in_run("model.safetensors", lambda r: r.model().state_dict()),
        "state": in_run("state/state.safetensors", lambda r: vars(load_position(r) or Position())),
        "predictions": in_run(
            "predictions/last/kep/test.safetensors",
            lambda r: r.prediction("last", "kep", "test").probs,
        ),
        "inspection": in_run("inspect.json", lambda r: r.inspection()),
        "temperature": in_run(
            f"methods/last/temperature/{FITTED}", lambda r: _kept(r, "temperature")
        ),
        "kfllla": in_run(f"methods/last/kfllla/{FITTED}", lambda r: _kept(r, "kfllla")),
        "stamp of a method": in_run(
            f"methods/last/kfllla/{FITTED}", lambda r: read_stamp(r.method_folder("last/kfllla"))
        ),
        "manifest of a run": in_run("manifest.json", lambda r: r.record()),
        **{
            f"{name} of a converted model": Kind(
                converted / name, lambda p: load_pretrained(converted).state_dict()
            )
            for name in CONVERTED
        },
        "record of a sweep": in_run("sweep.json", records.read_record),
        "times": Kind(made / "times.json", read_json),
        "abstainer": Kind(converted / "abstainer.json", lambda p: Abstainer.load(p.parent)),
        "tokens": Kind(
            made / "tokens.safetensors", lambda p: tuple(tokens.cached_tokens(p, never))
        ),
        "array": Kind(made / "array.npy", lambda p: np.array(store.cached(p, never))),
    }


NAMES = (
    "config of a run", "record of a run", "history", "metrics", "weights", "chosen weights",
    "state", "predictions", "inspection", "temperature", "kfllla",
    "stamp of a method", "manifest of a run", "record of a sweep", "times",
    "abstainer", "tokens", "array", *(f"{name} of a converted model" for name in CONVERTED),
)  # fmt: skip


def test_every_file_of_a_run_and_of_a_model_is_among_them(made) -> None:
    for folder in ("run", "converted"):
        files = {path for path in (made / folder).rglob("*") if path.is_file()}
        known = {kind.path for kind in ours(made).values()}
        alike = {"nll.safetensors", "score.safetensors", ".lock", ".metrics.lock"}
        # for people to read, and to change
        alike |= {"README.md"}
        assert {path for path in files - known if path.name not in alike} == set()


@pytest.mark.parametrize("name", NAMES)
def test_damaged_file_of_ours_is_refused_or_read_as_it_was(name, made, tried) -> None:
    assert ours(made).keys() == set(NAMES)
    kind = ours(made)[name]
    content, intact = kind.path.read_bytes(), kind.read(kind.path)
    count, refused = 0, []
    try:
        for damaged in damages(content, seed=len(name), flips=many(8, 400)):
            kind.path.write_bytes(damaged)
            count += 1
            try:
                found = kind.read(kind.path)
            except UserError as error:
                refused.append(str(error))
            else:
                assert same(found, intact), damaged[:200]
    finally:
        kind.path.write_bytes(content)
    assert same(kind.read(kind.path), intact)
    # spaces between numbers may change and nothing else
    assert len(refused) > 0.9 * count
    assert all(kind.path.name in message for message in refused)
    tried("damaged files that kepsvgp wrote: refused by name, or the same numbers", count)


@pytest.mark.parametrize("name", ["manifest of a run", "abstainer"])
@pytest.mark.parametrize("version", [FORMAT + 1, 0, None, "1", True])
def test_other_format_version_is_refused(name, version, made, tried) -> None:
    kind = ours(made)[name]
    content = kind.path.read_bytes()
    text = content.decode()
    assert f'"format": {FORMAT}' in text
    try:
        kind.path.write_text(
            text.replace(f'"format": {FORMAT}', f'"format": {json.dumps(version)}')
        )
        with pytest.raises(UserError, match="must have format") as caught:
            kind.read(kind.path)
        assert kind.path.name in str(caught.value)
        newer = isinstance(version, int) and version > FORMAT
        assert ("newer kepsvgp" in str(caught.value)) == newer
    finally:
        kind.path.write_bytes(content)
    tried("files of another format version", 1)


@pytest.fixture(scope="module")
def other(made, tmp_path_factory) -> RunFolder:
    """A run of another seed, measured and inspected."""
    config = RunFolder(made / "run").config().model_copy(update={"seed": 5})
    benchmark = load_benchmark(config.data)
    run = train(config, benchmark, tmp_path_factory.mktemp("other") / "run")
    evaluate(run, benchmark, run.model("last"), method="kep", checkpoint="last", splits=("test",))
    inspect_run(run, benchmark, checkpoint="last", split="test", examples=4)
    return run


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.toml", RunFolder.config),
        ("history.jsonl", RunFolder.history),
        ("metrics.json", RunFolder.metrics),
        ("inspect.json", RunFolder.inspection),
        ("model.safetensors", RunFolder.model),
        ("checkpoints/last.safetensors", lambda run: run.model("last")),
        ("state/state.safetensors", load_position),
        (
            "predictions/last/kep/test.safetensors",
            lambda run: run.prediction("last", "kep", "test"),
        ),
    ],
)
def test_file_of_another_run_is_refused(name, read, made, other, tmp_path, tried) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(made / "run", run.path)
    read(run)
    shutil.copy(other.path / name, run.path / name)
    with pytest.raises(UserError, match="it is of another folder") as error:
        read(run)
    assert Path(name).name in str(error.value)
    tried("files of another run", 1)


def test_files_of_a_folder_cannot_be_exchanged(made, tmp_path, tried) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(made / "run", run.path)
    shutil.copy(run.path / "checkpoints/nll.safetensors", run.weights_file("last"))
    if run.files.checksum("checkpoints/nll.safetensors") != run.files.checksum(
        "checkpoints/last.safetensors"
    ):
        with pytest.raises(UserError, match=r"last\.safetensors"):
            run.model("last")
    shutil.copy(run.metrics_file, run.path / "run.json")
    with pytest.raises(UserError, match=r"run\.json"):
        run.record()
    tried("files of one run exchanged", 2)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_endless_brackets_are_refused(opening, made, tmp_path, tried) -> None:
    brackets = opening * 100_000
    header = b'{"__metadata__":' + brackets
    kinds = list(ours(made).values())
    own = tmp_path / "own.toml"
    own.write_text("")
    kinds.append(Kind(own, load_config))
    for kind in kinds:
        content = kind.path.read_bytes()
        tensors = len(header).to_bytes(8, "little") + header
        is_tensors = kind.path.suffix == ".safetensors"
        prefix = b"x = " if kind.path.suffix == ".toml" else b""
        kind.path.write_bytes(tensors if is_tensors else prefix + brackets)
        try:
            with pytest.raises(UserError, match=kind.path.name):
                kind.read(kind.path)
        finally:
            kind.path.write_bytes(content)
    tried("files of endless brackets", len(kinds))


def test_commands_explain_damaged_files(processes, made, tmp_path, tried) -> None:
    run = tmp_path / "run"
    commands = {
        "config.toml": ("evaluate", run),
        "run.json": ("inspect", run),
        "metrics.json": ("report", run, "--out", tmp_path / "page.html"),
        "history.jsonl": ("report", run, "--out", tmp_path / "page.html"),
        "checkpoints/last.safetensors": ("evaluate", run),
        "state/state.safetensors": ("train", tmp_path / "c.toml", "--out", run, "--resume"),
    }
    chosen = dict(list(commands.items())[: many(2, 6)])
    for name, said in chosen.items():
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(made / "run", run)
        shutil.copy(run / "config.toml", tmp_path / "c.toml")
        text = (tmp_path / "c.toml").read_text()
        (tmp_path / "c.toml").write_text(text.partition("[versions]")[0])
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])
        ended = run_command(processes, tmp_path / "text", *said)
        assert_explained(ended, Path(name).name)
        assert not (tmp_path / "page.html").exists()
    tried("commands on a damaged run: exit code 2, no traceback", len(chosen))


def theirs(root: Path) -> dict[str, Kind]:
    """Files of users and publishers, which carry no checksum of ours."""
    write_python(root, TINY10)
    write_svhn(root / "svhn" / "test.mat", 3)
    write_cola(root, (12, 5, 4))
    (root / "texts.csv").write_text(
        "text,label\n" + "".join(f'"a text, {n}",{"ab"[n % 2]}\n' for n in range(9))
    )
    pixels = np.random.default_rng(0).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "bmp", "gif"):
        Image.fromarray(pixels).save(root / f"picture.{suffix}")
    (root / "own.toml").write_text(CONFIG)
    (root / "new.jsonl").write_text("".join(f'{{"text": "a text, {n}"}}\n' for n in range(9)))
    np.save(root / "official.npy", pixels)
    write_vocabulary(root / "vocab.txt", "the cat sat")
    python = root / TINY10.folder
    dev = root / "cola_public/raw/in_domain_dev.tsv"

    def picture(path: Path) -> np.ndarray:
        return pictures.read(path, 8)

    return {
        "CIFAR": Kind(python / "test_batch", lambda p: cifar.read_file(root, TINY10, "test_batch")),
        "CIFAR, classes": Kind(python / "batches.meta", lambda p: cifar.read_classes(root, TINY10)),
        "SVHN": Kind(root / "svhn" / "test.mat", svhn.read),
        "CoLA": Kind(dev, lambda p: cola.read(p, 5)),
        "CSV": Kind(
            root / "texts.csv",
            lambda path: table.read(path, "text", "label"),
        ),
        "CSV to predict": Kind(root / "texts.csv", lambda p: list(rows.open_texts(p, "text").rows)),
        "JSONL to predict": Kind(
            root / "new.jsonl", lambda p: list(rows.open_texts(p, "text").rows)
        ),
        "PNG": Kind(root / "picture.png", picture),
        "JPEG": Kind(root / "picture.jpg", picture),
        "BMP": Kind(root / "picture.bmp", picture),
        "GIF": Kind(root / "picture.gif", picture),
        "configuration": Kind(root / "own.toml", load_config),
        "NumPy array": Kind(root / "official.npy", lambda p: np.array(store.load_array(p))),
        "vocabulary": Kind(root / "vocab.txt", tokens.load_tokenizer),
    }


def test_damaged_file_of_others_is_an_error_that_names_it(tmp_path, tried) -> None:
    count = 0
    for name, kind in theirs(tmp_path).items():
        content = kind.path.read_bytes()
        refused = []
        kind.read(kind.path)
        for damaged in damages(content, seed=len(name), flips=many(20, 1500)):
            kind.path.write_bytes(damaged)
            count += 1
            try:
                kind.read(kind.path)
            except UserError as error:
                refused.append(str(error))
        assert all(kind.path.name in message for message in refused), name
        kind.path.write_bytes(content)
    tried("damaged files of users and publishers: read, or refused by name", count)


@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar", "zip"])
def test_damaged_archive_is_unpacked_in_its_folder_or_refused(kind, tmp_path, tried) -> None:
    source = tmp_path / "source"
    content = random.Random(1)
    for number in range(3):
        path = source / "things" / f"folder{number}" / f"{number}.txt"
        path.parent.mkdir(parents=True)
        path.write_bytes(content.randbytes(20) * 30)
    whole = Path(shutil.make_archive(str(tmp_path / "things"), kind, source, "things"))
    place = tmp_path / "place"
    place.mkdir()
    count = 0
    for damaged in damages(whole.read_bytes(), seed=3, flips=many(30, 1000)):
        whole.write_bytes(damaged)
        count += 1
        with suppress(UserError):
            archive.extract(whole, place / "root", "things", most_bytes=10_000)
        # nothing but the folder, or nothing
        assert {path.name for path in place.iterdir()} <= {"root"}
        assert {path.name for path in (place / "root").iterdir()} <= {"things"}
        shutil.rmtree(place / "root")
    tried("damaged archives: unpacked below their folder, or refused", count)
