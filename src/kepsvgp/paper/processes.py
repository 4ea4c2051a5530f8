"""One job in one process, wherever that is.

A job has a process of its own so that none can harm another: one that fails, or is killed for
its memory, is one failed job with its reason, and the others go on.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kepsvgp.paper.records import OutputRoot


class Outcome(NamedTuple):
    """How a job ended; `reason` is None if it succeeded."""

    name: str
    reason: str | None
    seconds: float


Process = subprocess.Popen[str]
# the GPUs that a process sees, by number or name
VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """The GPUs that this process sees."""
    import torch

    named = os.environ.get(VISIBLE)
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def execute(
    name: str,
    job: str,
    out: str,
    threads: int | None,
    started: Callable[[Process], object] | None = None,
    gpu: str | None = None,
) -> Outcome:
    """Does one job in a process of its own and waits for it.

    Args:
        name: Of the job, for its log.
        job: The job as JSON.
        out: The output root.
        threads: Threads of the process; None for as many as there are cores.
        started: Told of the process when it is there.
        gpu: The one GPU that the process sees; None for all that this one sees.
    """
    start = time.perf_counter()
    logs = Path(out) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log_file = logs / f"{name}.log"
    # added to: another sweep in the same root may be writing to it
    with log_file.open("a", encoding="utf-8") as log:
        begin = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", "kepsvgp.paper.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            cwd=out,
            env=_environment(threads, gpu),
        )
        if started is not None:
            started(process)
        code = _feed(process, job)
    reason = None if code == 0 else _reason(code, log_file, begin)
    OutputRoot(Path(out)).note_failure(name, reason)
    return Outcome(name, reason, time.perf_counter() - start)


def _feed(process: Process, job: str) -> int:
    """Hands the job over, keeps the input open until the process ends, and gives its code."""
    assert process.stdin is not None
    # a process that ended before it could read has said why in its log
    with suppress(BrokenPipeError):
        process.stdin.write(job + "\n")
        process.stdin.flush()
    code = process.wait()
    with suppress(BrokenPipeError):
        process.stdin.close()
    return code


def _environment(threads: int | None, gpu: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    if gpu is not None:
        environment[VISIBLE] = gpu
    # the job runs in the output root: what is meant from here must be said in full
    if environment.get("KEPSVGP_DATA"):
        environment["KEPSVGP_DATA"] = str(Path(environment["KEPSVGP_DATA"]).resolve())
    # last, this folder, where a method of one's own may be
    parts = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), "."]
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(part).resolve()) for part in parts)
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(threads)
    return environment


def _reason(code: int, log: Path, begin: int) -> str:
    """Why a process failed, in one line: the last thing it said, or its last error."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; perhaps the machine ran out of memory" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    text = log.read_bytes()[begin:].decode(errors="replace")
    said = [line.strip() for line in text.split("\n") if line.strip()]
    if code == 2:
        # what stands behind a user's mistake is the other sweep's
        said = [line for line in said if line.startswith("error: ")] or said
    return said[-1].removeprefix("error: ") if said else f"ended with code {code}"
