"""Commands that are killed, run out of disk or are interrupted, and then run again."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from breaking import (
    CONFIG,
    LONG,
    Command,
    Moments,
    Work,
    assert_explained,
    assert_same_results,
    killed,
    many,
    remount,
    run_command,
    small_disk,
    timed,
)
from PIL import Image
from sweeps import wait_until, without_times
from webserver import Behaviour, serving

from kepsvgp.data.download.catalogue import DataSet
from kepsvgp.data.download.fetch import fetch
from kepsvgp.errors import UserError
from kepsvgp.files import read_json

# one worker makes the run that they share
pytestmark = pytest.mark.xdist_group("crash")

KILLS = (signal.SIGKILL, signal.SIGTERM)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def undisturbed(processes, config, tmp_path_factory) -> tuple[Path, float]:
    """A run that nothing happened to, and how long it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    # the first process waits for the server to import everything
    assert run_command(processes, folder / "first", "data", "list").code == 0
    out = folder / "run"
    return out, timed(Command(processes, folder / "text", "train", config, "--out", out))


def test_training_that_is_killed_goes_on_to_the_same_results(
    processes, config, undisturbed, tmp_path, tried
) -> None:
    whole, duration = undisturbed
    moments = Moments(3, 0.8 * duration)
    kills, number = 0, 0
    while kills < many(2, 60):
        out = tmp_path / f"run{number}"
        command = Command(processes, tmp_path / "text", "train", config, "--out", out, "--resume")
        if command.interrupt(moments.next(), KILLS[kills % 2]):
            kills += 1
            command.wait()
        else:
            # it came to its end before its time: the next kill meets a new run
            assert command.wait().code == 0
            number += 1
    for out in tmp_path.glob("run*"):
        if out.is_dir():
            ended = run_command(
                processes, tmp_path / "text", "train", config, "--out", out, "--resume"
            )
            assert ended.code == 0, ended.err
            assert_same_results(out, whole)
    tried("kills (SIGKILL, SIGTERM) of train, then the same results", kills)


def test_comparison_that_is_killed_goes_on_to_the_same_results(
    processes, config, tmp_path, tried
) -> None:
    arguments = ("compare", config, "train.epochs=2", "--methods", "msp,temperature,kep")
    whole = Command(processes, tmp_path / "text", *arguments, "--out", tmp_path / "whole")
    moments = Moments(5, 0.7 * timed(whole), earliest=0.1)
    kills, number = 0, 0
    while kills < many(1, 12):
        out = tmp_path / f"out{number}"
        command = Command(processes, tmp_path / "text", *arguments, "--out", out)
        if command.interrupt(moments.next(), KILLS[kills % 2]):
            kills += 1
        else:
            number += 1
        command.wait()
    for out in tmp_path.glob("out*"):
        ended = run_command(processes, tmp_path / "text", *arguments, "--out", out)
        assert ended.code == 0, ended.err
        one, other = (read_json(folder / "compare.json") for folder in (out, tmp_path / "whole"))
        assert without_times(one) == without_times(other)
        for run in sorted((tmp_path / "whole").iterdir()):
            if run.is_dir():
                assert_same_results(out / run.name, run)
    tried("kills of compare (several runs, fitted methods), then the same results", kills)


def _fetch(data_set: DataSet, root: Path) -> None:
    fetch(data_set, root, pause_seconds=0.01)


@contextmanager
def published(folder: Path) -> Iterator[tuple[DataSet, dict[str, bytes]]]:
    """A data set on a server that cuts connections, and its content.

    The cuts make the download last, so that kills meet it under way.
    """
    source = folder / "source" / "things"
    source.mkdir(parents=True)
    content = random.Random(0)
    for number in range(40):
        (source / f"{number}.bin").write_bytes(content.randbytes(50_000))
    packed = Path(shutil.make_archive(str(folder / "things"), "gztar", source.parent, "things"))
    archive = packed.read_bytes()
    whole = {path.name: path.read_bytes() for path in source.iterdir()}
    with serving(Behaviour({"/things.tar.gz": archive}, cut_after=100_000)) as address:
        yield (
            DataSet(
                name="things",
                title="Things",
                url=f"{address}/things.tar.gz",
                md5=hashlib.md5(archive).hexdigest(),
                size=len(archive),
                folder="things",
                files={name: "" for name in whole},
            ),
            whole,
        )


def fetched(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "things").glob("*.bin")}


def test_fetch_that_is_killed_leaves_nothing_half_written(processes, tmp_path, tried) -> None:
    moments, kills, finished = random.Random(1), 0, 0
    with published(tmp_path) as (data_set, whole):
        wanted = many(3, 60)
        root = tmp_path / "root0"
        while kills < wanted:
            process = processes.Process(target=_fetch, args=(data_set, root))
            process.start()
            process.join(moments.uniform(0, 0.6))
            if process.is_alive():
                os.kill(process.pid, KILLS[kills % 2])
                kills += 1
            process.join()
            # either all of it is there, or it is known to be missing
            if not data_set.missing(root):
                assert fetched(root) == whole
                finished += 1
                root = tmp_path / f"root{finished}"
            else:
                assert fetched(root) == {}
        _fetch(data_set, root)
    assert fetched(root) == whole
    tried("kills of fetch, then whole data or none", kills)


def test_fetch_to_a_full_or_read_only_disk_leaves_nothing_half_written(tmp_path, tried) -> None:
    # of 2 MB for the archive and as much for its content
    sizes = (1_000, 3_000)
    with published(tmp_path) as (data_set, whole):
        for number, kilobytes in enumerate(sizes):
            with small_disk(tmp_path / f"disk{number}", kilobytes) as disk:
                with pytest.raises((UserError, OSError), match=r"room|No space left on device"):
                    _fetch(data_set, disk)
                assert data_set.missing(disk)
                assert fetched(disk) == {}
                remount(disk, "size=64m,ro")
                with pytest.raises(OSError, match="Read-only file system"):
                    _fetch(data_set, disk)
                remount(disk, "rw")
                _fetch(data_set, disk)
                assert fetched(disk) == whole
                assert {path.name for path in disk.iterdir()} == {"downloads", "things"}
    tried("full and read-only disks under fetch, then whole data", 2 * len(sizes))


def test_report_that_is_killed_leaves_the_old_page_or_the_new(
    processes, undisturbed, tmp_path, tried
) -> None:
    run, _ = undisturbed
    page = tmp_path / "report.html"

    def start() -> Command:
        page.write_bytes(b"the old page")
        return Command(processes, tmp_path / "text", "report", run, "--out", page)

    moments, kills = Moments(2, timed(start())), many(2, 40)
    new = page.read_bytes()
    for _ in killed(start, moments, kills, KILLS):
        assert page.read_bytes() in (b"the old page", new)
    tried("kills of report, then the old page or the new", kills)


def _save_converted(folder: Path, seed: int) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    from kepsvgp import convert
    from kepsvgp.conversion import save_pretrained

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=8, id2label={seed: "yes", 1 - seed: "no"},
    )  # fmt: skip
    save_pretrained(convert(BertForSequenceClassification(config), 1), folder)


def test_converted_model_that_was_killed_while_saved_is_whole_or_refused(
    processes, tmp_path, tried
) -> None:
    from kepsvgp.conversion import load_pretrained

    durations = [timed(Work(processes, _save_converted, tmp_path / str(s), s)) for s in (0, 1)]
    known = [load_pretrained(tmp_path / str(seed)) for seed in (0, 1)]
    assert known[0].config.id2label != known[1].config.id2label
    # most of the time is spent before the first file is written
    moments, kills = Moments(4, 1.1 * durations[1], earliest=0.5), many(2, 40)
    folder, seeds = tmp_path / "model", cycle((1, 0))
    shutil.copytree(tmp_path / "0", folder)

    def start() -> Work:
        return Work(processes, _save_converted, folder, next(seeds))

    for _ in killed(start, moments, kills, KILLS[:1]):
        try:
            found = load_pretrained(folder)
        except UserError:
            continue
        (whole,) = (old for old in known if old.config.id2label == found.config.id2label)
        weights = found.state_dict()
        assert all(torch.equal(weights[k], value) for k, value in whole.state_dict().items())
    tried("kills of save_pretrained, then one whole model or a refusal", kills)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Images to predict."""
    folder = tmp_path_factory.mktemp("pictures")
    content = np.random.default_rng(0)
    for number in range(60):
        pixels = content.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_predict_that_is_killed_leaves_the_old_file_or_the_new(
    processes, undisturbed, pictures, tmp_path, tried
) -> None:
    run, _ = undisturbed
    out = tmp_path / "out.csv"
    arguments = ("predict", run, pictures, "--out", out, "--batch-size", 4)

    def start() -> Command:
        out.write_bytes(b"old")
        return Command(processes, tmp_path / "text", *arguments)

    moments, kills = Moments(6, timed(start())), many(2, 40)
    new = out.read_bytes()
    assert new.count(b"\n") == 61
    for ended in killed(start, moments, kills, (*KILLS, signal.SIGINT)):
        assert "Traceback" not in ended.err
        assert out.read_bytes() in (b"old", new)
    tried("kills of predict, then the old file or the new", kills)


def _export(path: Path, format: Literal["torch", "onnx"]) -> None:
    from torch import nn

    from kepsvgp import KEPAttention, export

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = KEPAttention(32, 4), nn.Linear(32, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x).mean(dim=-2))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    export(Model(), path, torch.randn(2, 5, 32), format=format, generator=generator)


def _run_graph(path: Path) -> torch.Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: np.ones((3, 5, 32), dtype=np.float32)}
    return torch.as_tensor(session.run(None, feed)[0])


@pytest.mark.skipif(not LONG, reason="an export takes seconds: make stress kills some")
def test_export_that_is_killed_leaves_the_old_graph_or_the_new(processes, tmp_path, tried) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"

    def start() -> Work:
        path.write_bytes(b"old")
        return Work(processes, _export, path, "onnx")

    # most of the time is spent before the file is written
    moments, kills = Moments(8, timed(start()), earliest=0.3), many(1, 10)
    expected = _run_graph(path)
    for _ in killed(start, moments, kills, KILLS):
        assert path.read_bytes() == b"old" or torch.equal(_run_graph(path), expected)
    tried("kills of export, then the old graph or the new", kills)


@pytest.mark.parametrize("format", ["torch", "onnx"][: many(1, 2)])
def test_export_to_a_full_disk_keeps_the_old_graph(format, tmp_path, tried) -> None:
    pytest.importorskip("onnxscript")
    with small_disk(tmp_path / "disk", 12) as disk:
        (disk / "model").write_bytes(b"old")
        with pytest.raises(UserError, match="model must be writable"):
            _export(disk / "model", format)
        assert (disk / "model").read_bytes() == b"old"
        assert len(list(disk.iterdir())) == 1
    tried("full disks under export", 1)


def test_full_disk_is_one_message_and_room_lets_it_go_on(
    processes, config, undisturbed, tmp_path, tried
) -> None:
    whole, _ = undisturbed
    needed = sum(f.stat().st_size for f in whole.rglob("*") if f.is_file()) // 1024
    sizes = random.Random(7).sample(range(8, needed), many(1, 24))
    for number, kilobytes in enumerate(sizes):
        with small_disk(tmp_path / f"disk{number}", kilobytes) as disk:
            arguments = ("train", config, "--out", disk / "run", "--resume")
            ended = run_command(processes, tmp_path / "text", *arguments)
            assert_explained(ended, "No space left on device", str(disk))
            assert not list(disk.rglob(".*.part"))
            remount(disk, "size=64m")
            ended = run_command(processes, tmp_path / "text", *arguments)
            assert ended.code == 0, ended.err
            assert_same_results(disk / "run", whole)
    tried("disks that filled up while training, then the same results", len(sizes))


def test_full_disk_keeps_the_old_page(processes, undisturbed, tmp_path, tried) -> None:
    run, _ = undisturbed
    with small_disk(tmp_path / "disk", 64) as disk:
        (disk / "report.html").write_text("the old page")
        ended = run_command(
            processes, tmp_path / "text", "report", run, "--out", disk / "report.html"
        )
        assert_explained(ended, "No space left on device", "report.html")
        assert (disk / "report.html").read_text() == "the old page"
        assert len(list(disk.iterdir())) == 1
    tried("full disks under report", 1)


def test_read_only_folder_is_one_message(
    processes, config, undisturbed, pictures, tmp_path, tried
) -> None:
    whole, _ = undisturbed
    with small_disk(tmp_path / "disk", 64_000) as disk:
        shutil.copytree(whole, disk / "run")
        # a folder that becomes read-only while a run is trained in it
        arguments = ("train", config, "seed=1", "--out", disk / "other", "--resume")
        command = Command(processes, tmp_path / "text", *arguments)
        wait_until((disk / "other" / "state").exists)
        command.stop()
        blocked = _make_read_only(disk)
        os.kill(command.pid, signal.SIGCONT)
        if blocked:
            assert_explained(command.wait(), "Read-only file system")
        else:
            command.wait()
            remount(disk, "ro")
        for said in (
            ("train", config, "--out", disk / "new"),
            ("train", config, "seed=1", "--out", disk / "other", "--resume"),
            ("evaluate", disk / "run"),
            ("evaluate", disk / "run", "--method", "temperature"),
            ("report", disk / "run", "--out", disk / "report.html"),
            ("predict", disk / "run", pictures, "--out", disk / "out.csv"),
            ("inspect", disk / "run"),
        ):
            ended = run_command(processes, tmp_path / "text", *said)
            if said[:2] == ("train", config) and "--resume" in said and ended.code == 0:
                continue
            assert_explained(ended, "Read-only file system")
    tried("commands on a read-only folder", 8)


def _make_read_only(disk: Path) -> bool:
    """Whether the disk could be made read-only; it cannot while a file on it is being written."""
    done = subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True)
    return done.returncode == 0


def test_second_process_is_told_and_touches_nothing(processes, config, tmp_path, tried) -> None:
    out = tmp_path / "run"
    first = Command(processes, tmp_path / "first", "train", config, "train.epochs=40", "--out", out)
    wait_until((out / "checkpoints" / "last.safetensors").exists)
    first.stop()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    commands = (
        ("train", config, "train.epochs=40", "--out", out, "--resume"),
        ("evaluate", out, "--checkpoint", "last"),
        ("evaluate", out, "--checkpoint", "last", "--method", "temperature"),
    )
    for said in commands:
        ended = run_command(processes, tmp_path / "second", *said)
        assert_explained(ended, "must not be in use", str(out))
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    os.kill(first.pid, signal.SIGCONT)
    first.interrupt(0, signal.SIGKILL)
    first.wait()
    tried("second processes on one run folder", len(commands))


def test_interrupted_training_ends_at_once_and_goes_on(
    processes, config, undisturbed, tmp_path, tried
) -> None:
    whole, duration = undisturbed
    moments, interrupts = Moments(9, 0.6 * duration, earliest=0.03), 0
    took = []
    while interrupts < many(2, 30):
        out = tmp_path / "run"
        command = Command(processes, tmp_path / "text", "train", config, "--out", out, "--resume")
        if not command.interrupt(moments.next(), signal.SIGINT):
            assert command.wait().code == 0
            shutil.rmtree(out)
            continue
        start = time.monotonic()
        ended = command.wait(60)
        if ended.code == 0:
            # it had all but ended
            shutil.rmtree(out)
            continue
        took.append(time.monotonic() - start)
        interrupts += 1
        # before the command line is loaded the system ends it, which is as good
        assert ended.code in (130, -signal.SIGINT), ended
        assert "Traceback" not in ended.err
        assert "Error" not in ended.err
    ended = run_command(
        processes, tmp_path / "text", "train", config, "--out", tmp_path / "run", "--resume"
    )
    assert ended.code == 0, ended.err
    assert_same_results(tmp_path / "run", whole)
    # half of them, so that a busy machine is not taken for a slow command
    assert not LONG or sorted(took)[len(took) // 2] < 1.0, took
    tried("Ctrl-C during train: over within a second, no traceback, the same results", interrupts)


# interrupts itself, as Ctrl-C would, when a certain module is about to be loaded
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[0] = "kepsvgp"
runpy.run_module("kepsvgp", run_name="__main__", alter_sys=True)
"""
MODULES = (
    *("typer.main", "torch", "kepsvgp.training.loop"),
    *(
        "rich.table",
        "numpy",
        "torch.nn.functional",
        "torch.optim",
        "accelerate",
        "sklearn.datasets",
    ),
)


@pytest.mark.parametrize("module", MODULES[: many(2, len(MODULES))])
def test_interrupt_while_loading_has_no_traceback(module, config, tmp_path, tried) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "train", str(config), "--out", str(tmp_path / "run")],
        env=os.environ | {"INTERRUPT_AT": module},
        capture_output=True,
        text=True,
    )

    assert done.returncode in (130, -signal.SIGINT), done
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    tried("Ctrl-C while modules are loaded", 1)
