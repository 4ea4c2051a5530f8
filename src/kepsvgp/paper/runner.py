"""Runs jobs on this machine or on a Ray cluster, by the same code: one process for each.

What stands after another waits for it, and fails with it. Stopwatch measurements come last
and alone.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from kepsvgp.errors import UserError
from kepsvgp.paper.plan import Task, Timing
from kepsvgp.paper.processes import Outcome, Process, execute, visible_gpus
from kepsvgp.paper.records import OutputRoot

Job = Task | Timing
# gives a job to whoever does it
Submit = Callable[[Job], "Future[Outcome]"]


def run_jobs(
    tasks: Sequence[Task], timings: Sequence[Timing], root: OutputRoot, submit: Submit
) -> Iterator[Outcome]:
    """Does all jobs, and tells of each when it has ended, well or not."""
    yield from _run_tasks(tasks, root, submit)
    for timing in timings:
        yield _outcome(timing.name, submit(timing))


def _run_tasks(tasks: Sequence[Task], root: OutputRoot, submit: Submit) -> Iterator[Outcome]:
    waiting = {task.name: task for task in tasks}
    running: dict[Future[Outcome], str] = {}
    ended: dict[str, Outcome] = {}
    while waiting or running:
        for task in list(waiting.values()):
            if any(name in waiting or name in running.values() for name in task.after):
                continue
            del waiting[task.name]
            # one that is trained will do, even if an evaluation of it failed
            broken = [name for name in task.after if not root.run(name).is_trained]
            if broken:
                why = ended[broken[0]].reason if broken[0] in ended else "it was not run"
                reason = f"{broken[0]}, from which it starts, failed: {why}"
                root.note_failure(task.name, reason)
                ended[task.name] = Outcome(task.name, reason, 0.0)
                yield ended[task.name]
            else:
                running[submit(task)] = task.name
        if running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                root.changed(name)
                ended[name] = _outcome(name, future)
                yield ended[name]


def _outcome(name: str, future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except Exception as error:
        lines = str(error).strip().split("\n")
        return Outcome(name, f"{type(error).__name__}: {lines[-1]}", 0.0)


@contextmanager
def local_processes(out: Path, *, jobs: int, threads: int | None) -> Iterator[Submit]:
    """Jobs in processes on this machine, so many at a time, on the GPU with the fewest of them.

    A job that names its GPU by a number sees them all, so that it is the one that is meant.

    Leaving the block early ends those that are running; their runs can be continued.
    """
    # of torch, which a sweep with nothing to do goes without
    from kepsvgp.ops.device import find_device

    children, pool = _Children(), ThreadPoolExecutor(max_workers=jobs)
    places = queue.SimpleQueue[str | None]()
    for _, gpu in zip(range(jobs), cycle(visible_gpus() or [None])):
        places.put(gpu)

    def work(job: Job) -> Outcome:
        gpu = places.get()
        try:
            text = job.model_dump_json()
            seen = None if any(":" in device for device in _devices(job)) else gpu
            return execute(job.name, text, str(out.resolve()), threads, children.add, seen)
        finally:
            places.put(gpu)

    def submit(job: Job) -> "Future[Outcome]":
        for device in _devices(job):
            find_device(device)
        return pool.submit(work, job)

    try:
        yield submit
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        children.end()
        pool.shutdown(wait=True)


def _devices(job: Job) -> set[str]:
    configs = [job.config] if isinstance(job, Task) else job.configs.values()
    return {config.train.device for config in configs}


class _Children:
    """Processes that must not outlive what they were started for."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), False
        self._started: list[Process] = []

    def add(self, process: Process) -> None:
        """One more; it is ended at once if it comes too late."""
        with self._lock:
            self._started.append(process)
            if self._ended:
                process.terminate()

    def end(self) -> None:
        """Ends all that are running."""
        with self._lock:
            self._ended = True
            for process in self._started:
                if process.poll() is None:
                    process.terminate()


@contextmanager
def ray_cluster(out: Path, address: str, *, threads: int) -> Iterator[Submit]:
    """Jobs on the nodes of a Ray cluster that is there already.

    Every node must have this package and see the output root and the data under the same paths.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            "--ray must have Ray, which is not installed. Run `pip install 'kepsvgp[ray]'`."
        ) from None
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, str(error)) from None
    has_gpus = bool(ray.cluster_resources().get("GPU"))
    remote = ray.remote(num_cpus=threads, max_retries=0)(execute)

    def submit(job: Job) -> "Future[Outcome]":
        devices = _devices(job)
        if any(":" in device for device in devices):
            raise UserError(
                "train.device must be a kind of device with --ray, which shows each job the one "
                f"GPU that it gives it; got {', '.join(sorted(devices))}. Leave out the number."
            )
        gpus = int(has_gpus and devices != {"cpu"})
        text = job.model_dump_json()
        to_node = remote.options(num_gpus=gpus)
        return to_node.remote(job.name, text, str(out.resolve()), threads).future()

    try:
        yield submit
    finally:
        # what still runs ends with the connection
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Refuses an address where nobody listens: Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto" or "://" in address:
        return
    if not host or not port.isdigit():
        raise _no_cluster(address, "an address reads host:port, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, why: str) -> UserError:
    return UserError(
        f"--ray must be the address of a running Ray cluster; there is none at {address} ({why}). "
        "Start one with `ray start --head`."
    )
