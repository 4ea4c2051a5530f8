"""Sweeps compared file by file, times aside, and the processes that work for them."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from kepsvgp.runs.weights import weights_about

# a configuration of the digits that trains in a moment
TINY = """
[data]
name = "digits"
train_limit = 64
val_limit = 32
test_limit = 48
corruption_limit = 16
[model]
depth = 2
dim = 12
num_heads = 2
mlp_dim = 12
patch_size = 4
[model.kep]
rank = 2
[model.sgpa]
num_inducing = 3
[model.svdkl]
num_features = 4
grid_size = 8
[train]
epochs = 2
batch_size = 32
lr = 1e-2
augment = false
[prediction]
num_samples = 2
"""

# keys that hold times, wherever they are, and checksums of what holds them
TIMES = {
    *("seconds", "val_seconds", "seconds_per_1000", "data_wait", "waited"),
    "checksum",
}


def files_of(out: Path) -> dict[str, Path]:
    """Everything in an output root but logs and locks, by relative name."""
    found = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    return {
        name: path
        for name, path in sorted(found.items())
        if not name.startswith("logs/") and path.name != ".lock"
    }


def content_of(path: Path) -> Any:
    """What a file says, times left out."""
    match path.suffix:
        case ".json" if path.name == "manifest.json":
            return sorted(json.loads(path.read_text())["files"])
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".jsonl":
            return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        case ".safetensors":
            tensors, about = load_file(path), weights_about(path)
            if "position" in about:
                about = without_times(about | {"position": json.loads(about["position"])})
            return about, {name: (t.dtype, t.tobytes()) for name, t in tensors.items()}
        case ".html":
            # the report page shows times among its numbers: it must be there, and whole
            return path.read_text().rstrip().endswith("</html>")
        case _:
            return path.read_bytes()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if key not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def assert_same_sweep(out: Path, expected: Path) -> None:
    """The same files with the same content, but for times."""
    ours, theirs = files_of(out), files_of(expected)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if content_of(ours[name]) != content_of(theirs[name])] == []


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Waits, and fails where it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """Processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    """Workers end with the one who started them."""
    wait_until(lambda: not any(map(is_alive, pids)))
