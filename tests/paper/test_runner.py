import signal
import socket
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kepsvgp.config.sections import TrainConfig
from kepsvgp.errors import UserError
from kepsvgp.paper.plan import Task, timing_of
from kepsvgp.paper.processes import Outcome, execute
from kepsvgp.paper.records import OutputRoot
from kepsvgp.paper.runner import Job, local_processes, ray_cluster, run_jobs

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by signals"),
    # one worker makes the sweep that they share
    pytest.mark.xdist_group("swept"),
]


class Recorder:
    """Does jobs by writing down their names; some fail."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing, self.done = failing, []

    def __call__(self, job: Job) -> "Future[Outcome]":
        self.done.append(job.name)
        future: Future[Outcome] = Future()
        if job.name in self.failing:
            future.set_exception(OSError("the node\nwent away"))
        else:
            future.set_result(Outcome(job.name, None, 0.0))
        return future


def test_jobs_wait_for_what_they_start_from(swept) -> None:
    tasks = swept.tasks("table1")
    recorder = Recorder()

    ended = list(run_jobs(tasks[::-1], [], swept.root, recorder))

    assert {outcome.name for outcome in ended} == {task.name for task in tasks}
    for task in tasks:
        for before in task.after:
            assert recorder.done.index(before) < recorder.done.index(task.name)


def test_timings_come_last(swept) -> None:
    tasks = swept.tasks("table4")
    timing = timing_of({"kep": tasks[0].config})
    recorder = Recorder()

    list(run_jobs(tasks, [timing], swept.root, recorder))

    assert recorder.done[-1] == timing.name


def test_a_failed_job_takes_with_it_only_what_starts_from_it(swept, tmp_path) -> None:
    tasks = swept.tasks("table1")
    lost = next(task for task in tasks if task.config.method == "msp")
    recorder = Recorder((lost.name,))
    # the softmax runs are those of a finished sweep, but for the one that fails
    for task in tasks:
        if task.config.method == "msp" and task.name != lost.name:
            (tmp_path / task.name).symlink_to(swept.out / task.name)

    ended = {
        outcome.name: outcome for outcome in run_jobs(tasks, [], OutputRoot(tmp_path), recorder)
    }

    assert ended[lost.name].reason == "OSError: went away"
    broken = [outcome for outcome in ended.values() if outcome.reason is not None]
    assert len(broken) == 2
    heir = next(task for task in tasks if task.after == (lost.name,))
    assert "from which it starts, failed: OSError: went away" in str(ended[heir.name].reason)
    assert heir.name not in recorder.done
    assert "from which it starts" in str(OutputRoot(tmp_path).failure(heir.name))


def test_execute_tells_why_a_job_failed_and_forgets_it_when_it_succeeds(swept, tmp_path) -> None:
    # the data of CIFAR-10 are not at hand
    task = swept.tasks("table7")[0]
    data = task.config.data.model_copy(update={"name": "cifar10", "root": tmp_path / "none"})
    bad = task.model_copy(update={"config": task.config.model_copy(update={"data": data})})

    outcome = execute(task.name, bad.model_dump_json(), str(tmp_path), 1)

    assert outcome.reason is not None
    assert "cifar-10-batches-py" in outcome.reason
    assert OutputRoot(tmp_path).failure(task.name) == outcome.reason
    assert not OutputRoot(tmp_path).run(task.name).is_trained

    again = execute(task.name, task.model_dump_json(), str(tmp_path), 1)

    assert again.reason is None
    assert OutputRoot(tmp_path).failure(task.name) is None
    assert OutputRoot(tmp_path).run(task.name).is_trained


def test_execute_names_the_signal_that_ended_a_job(tmp_path) -> None:
    outcome = execute("job", "{}", str(tmp_path), 1, lambda process: process.kill())

    assert outcome.reason == "killed by SIGKILL; perhaps the machine ran out of memory"


def test_leaving_local_processes_ends_those_that_run(swept, tmp_path) -> None:
    task = swept.tasks("table7")[0]
    train = task.config.train.model_copy(update={"epochs": 100_000})
    endless = task.model_copy(update={"config": task.config.model_copy(update={"train": train})})

    with local_processes(tmp_path, jobs=1, threads=1) as submit:
        future = submit(endless)
        log = tmp_path / "logs" / f"{task.name}.log"
        while not log.exists():
            assert not future.done()

    assert future.result(timeout=30).reason == f"killed by {signal.Signals.SIGTERM.name}"


@pytest.mark.parametrize(
    ("address", "why"), [("127.0.0.1", "reads host:port"), ("nowhere", "reads host:port")]
)
def test_ray_needs_an_address(address, why, tmp_path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=why), ray_cluster(tmp_path, address, threads=1):
        pass


def test_ray_says_at_once_that_nobody_listens(tmp_path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        # bound but not listening
        with (
            pytest.raises(UserError, match=r"there is none at 127\.0\.0\.1"),
            ray_cluster(tmp_path, address, threads=1),
        ):
            pass


def on(device: str, task: Task) -> Task:
    update = {"train": TrainConfig(device=device)}
    return task.model_copy(update={"config": task.config.model_copy(update=update)})


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", ["3", "3", "GPU-5", "GPU-5"]), ("cuda:1", ["None"] * 4)],
)
def test_jobs_share_the_gpus_evenly(device, expected, swept, tmp_path, monkeypatch) -> None:
    for name, value in {
        "cuda.device_count": 2,
        "accelerator.device_count": 2,
        "accelerator.is_available": True,
        "accelerator.current_accelerator": torch.device("cuda"),
    }.items():
        monkeypatch.setattr(f"torch.{name}", lambda value=value: value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5,7")
    together = threading.Barrier(4, timeout=60)

    def seen(name: str, *given: object) -> Outcome:
        # all at once, so that none can have the place of another
        together.wait()
        return Outcome(name, f"{given[-1]}", 0.0)

    monkeypatch.setattr("kepsvgp.paper.runner.execute", seen)
    with local_processes(tmp_path, jobs=4, threads=1) as submit:
        jobs = [submit(on(device, task)) for task in swept.tasks("table1")[:4]]
        assert sorted(f"{job.result().reason}" for job in jobs) == expected
        with pytest.raises(UserError, match=r"cuda:0, cuda:1 on this machine; got 'cuda:2'"):
            submit(on("cuda:2", swept.tasks("table1")[0]))


class FakeRay(SimpleNamespace):
    """A cluster with GPUs, which notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        super().__init__(init=self._ignore, shutdown=self._ignore)

    def _ignore(self, **_: Any) -> None:
        pass

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 2.0}

    def remote(self, **_: Any) -> Any:
        return lambda _: SimpleNamespace(options=self._options)

    def _options(self, **options: Any) -> Any:
        self.asked.append(options)
        return SimpleNamespace(remote=lambda *_: SimpleNamespace(future=Future))


def test_ray_gives_a_gpu_to_each_job_that_can_use_it(swept, tmp_path, monkeypatch) -> None:
    ray, task = FakeRay(), swept.tasks("table1")[0]
    monkeypatch.setitem(sys.modules, "ray", ray)

    with ray_cluster(tmp_path, "auto", threads=1) as submit:
        for device in ("auto", "cuda", "cpu"):
            submit(on(device, task))
        with pytest.raises(UserError, match=r"with --ray, .* got cuda:1. Leave out the number"):
            submit(on("cuda:1", task))

    assert ray.asked == [{"num_gpus": 1}, {"num_gpus": 1}, {"num_gpus": 0}]
