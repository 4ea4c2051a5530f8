"""Tools that break things: commands in processes that can be killed, and disks that fail."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from sweeps import without_times

from kepsvgp.runs.folder import RunFolder

LONG = os.environ.get("KEPSVGP_STRESS") == "long"

CONFIG = """
method = "kep"
[data]
train_limit = 320
val_limit = 50
test_limit = 50
corruptions = "none"
[model]
depth = 1
dim = 24
num_heads = 4
mlp_dim = 24
patch_size = 4
[model.kep]
rank = 3
[train]
epochs = 4
batch_size = 32
lr = 1e-2
save_steps = 3
[prediction]
num_samples = 2
"""


def many(short: int, long: int) -> int:
    """How many cases to try."""
    return long if LONG else short


class Ended(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def _command(arguments: list[str], output: Path) -> None:
    """The body of a process that is the command line."""
    torch.set_num_threads(1)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(output.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.argv = ["kepsvgp", *arguments]
    from kepsvgp.__main__ import main

    main()


class Work:
    """A function in a process of its own, forked from one that has imported torch."""

    def __init__(self, processes, do: Callable[..., object], *arguments: object) -> None:
        self._process = processes.Process(target=do, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def wait(self, seconds: float | None = None) -> Ended:
        """How it ended; it must within the time."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "still running"
        return Ended(self._process.exitcode, "", "")

    def interrupt(self, after: float, number: signal.Signals) -> bool:
        """Sends a signal after some time; False if the process had ended by then."""
        self._process.join(after)
        if not self._process.is_alive():
            return False
        os.kill(self.pid, number)
        return True

    def stop(self) -> None:
        """Halts the process where it is; it has halted when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)


class Command(Work):
    """The command line."""

    def __init__(self, processes, output: Path, *arguments: object) -> None:
        self._output = output
        super().__init__(processes, _command, [str(argument) for argument in arguments], output)

    def wait(self, seconds: float | None = None) -> Ended:
        """How it ended, and what it said."""
        code = super().wait(seconds).code
        texts = (self._output.with_suffix(f".{name}") for name in ("out", "err"))
        return Ended(code, *(text.read_text() if text.exists() else "" for text in texts))


class Moments:
    """Random moments within the time that something takes.

    Where it ends before its moment, as a machine is not always equally busy, the next ones
    come sooner.
    """

    def __init__(self, seed: int, seconds: float, *, earliest: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._seconds = seconds
        self._earliest = earliest

    def next(self) -> float:
        return self._random.uniform(self._earliest, 1.0) * self._seconds

    def missed(self) -> None:
        self._seconds *= 0.8


def run_command(processes, output: Path, *arguments: object) -> Ended:
    """Runs a command to its end."""
    return Command(processes, output, *arguments).wait()


def timed(work: Work) -> float:
    """How long something takes that must succeed."""
    start = time.monotonic()
    ended = work.wait()
    assert ended.code == 0, ended.err
    return time.monotonic() - start


def killed(
    start: Callable[[], Work], moments: Moments, count: int, signals: tuple[signal.Signals, ...]
) -> Iterator[Ended]:
    """Does something again and again until it was killed so often; how it ended, each time."""
    kills = 0
    while kills < count:
        work = start()
        if work.interrupt(moments.next(), signals[kills % len(signals)]):
            kills += 1
        else:
            moments.missed()
        yield work.wait()


def assert_explained(ended: Ended, *words: str) -> None:
    """A clear error: exit code 2, one message with these words, no traceback."""
    assert ended.code == 2, ended
    assert "Traceback" not in ended.err, ended.err
    assert ended.err.splitlines()[-1].startswith("error: ") or "error: " in ended.err
    for word in words:
        assert word in ended.err, ended.err


def results(folder: Path) -> tuple[object, object, dict[str, torch.Tensor]]:
    """Everything that a run came to: history, metrics, weights and predictions."""
    run = RunFolder(folder)
    files = sorted(
        path for path in folder.rglob("*.safetensors") if path.parent.name not in ("state",)
    )
    tensors = {
        f"{path.relative_to(folder)}/{name}": tensor
        for path in files
        for name, tensor in load_file(path).items()
    }
    return without_times(run.history()), without_times(run.metrics()), tensors


def assert_same_results(one: Path, other: Path) -> None:
    """Equal to the last bit."""
    (history, metrics, tensors), (others, their_metrics, their_tensors) = map(results, (one, other))
    assert history == others
    assert metrics == their_metrics
    assert tensors.keys() == their_tensors.keys()
    assert all(torch.equal(tensors[name], their_tensors[name]) for name in tensors)
    assert not list(one.rglob(".*.part"))


@contextmanager
def small_disk(folder: Path, kilobytes: int, *options: str) -> Iterator[Path]:
    """A file system of its own at `folder`, with so much room; only root may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    if not shutil.which("mount") or os.geteuid() != 0:
        pytest.skip("a small disk must be mounted, which needs root")
    what = ",".join((f"size={kilobytes}k", *options))
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", what, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a small disk could not be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)


def remount(folder: Path, *options: str) -> None:
    """Changes the options of a small disk."""
    subprocess.run(["mount", "-o", ",".join(("remount", *options)), str(folder)], check=True)


def open_files(pid: int | str = "self") -> int:
    """How many files a process holds open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_megabytes(pid: int | str = "self") -> float:
    """Memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
