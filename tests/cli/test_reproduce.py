"""`kepsvgp reproduce` in processes of its own: alone, killed half-way, and on Ray."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import call
from sweeps import TINY, assert_same_sweep, children_of, files_of, wait_until, wait_until_gone

from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.state import STATE

WANTED = ("table7", "figure3")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by signals"),
    pytest.mark.xdist_group("reproduce"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("configs") / "tiny.toml"
    # long enough to be killed half-way
    path.write_text(TINY.replace("epochs = 2", "epochs = 40"))
    return path


def command(tiny: Path, out: Path, *more: object) -> list[str]:
    given = [*WANTED, "--config", tiny, "--seeds", 1, "--resamples", 50, "--out", out, *more]
    return [sys.executable, "-m", "kepsvgp", "reproduce", *map(str, given)]


def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def runs_in(out: Path) -> list[RunFolder]:
    return [RunFolder(file.parent) for file in sorted(out.glob("*/config.toml"))]


@pytest.fixture(scope="module")
def local(tiny, tmp_path_factory) -> Path:
    """A sweep in two processes at a time."""
    out = tmp_path_factory.mktemp("local")
    done = run(command(tiny, out, "--jobs", 2))
    assert "Table 7. KEP-SVGP as a complement" in done.stdout
    assert "[2/2]" in done.stderr
    return out


def test_reproduce_writes_tables_and_figures(local) -> None:
    assert len(runs_in(local)) == 2
    for suffix in ("md", "csv", "tex", "json"):
        assert (local / "tables" / f"table7-digits-tiny.{suffix}").stat().st_size > 300
    content = json.loads((local / "tables" / "table7-digits-tiny.json").read_text())
    assert all(cell["mean"] is not None for cell in content["cells"])
    figure = local / "figures" / "figure3-digits-tiny.png"
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in figure.with_suffix(".svg").read_bytes()
    assert figure.name in figure.with_suffix(".md").read_text()
    page = (local / "report-digits-tiny.html").read_text()
    assert "KEP-SVGP" in page
    assert page.rstrip().endswith("</html>")


def test_reproduce_again_trains_nothing(local, tiny, capsys) -> None:
    before = {name: path.stat().st_mtime_ns for name, path in files_of(local).items()}

    assert call(*command(tiny, local, "--jobs", 2)[3:]) == 0

    assert "[1/" not in capsys.readouterr().err
    after = {name: path.stat().st_mtime_ns for name, path in files_of(local).items()}
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert all(name.startswith(("tables/", "figures/", "report-")) for name in changed)


def test_reproduce_dry_run_says_what_is_left(local, tiny, tmp_path, capsys) -> None:
    for out, told in (
        (local, r"0 of 2 runs left, about 0 s"),
        (tmp_path / "new", r"2 of 2 runs left, for how long is unknown"),
    ):
        assert call(*command(tiny, out, "--dry-run")[3:]) == 0
        shown = capsys.readouterr().out
        assert re.search(told, shown)
        assert "table7, digits: MSP, Temperature Scaling, MC Dropout" in shown
        assert "KEP-SVGP + KFLLLA × 7 columns" in shown
    assert "40 epochs to train" in shown
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found through /proc")
def test_a_killed_sweep_goes_on_and_trains_nothing_twice(local, tiny, tmp_path) -> None:
    out = tmp_path / "killed"
    sweep = subprocess.Popen(
        command(tiny, out, "--threads", 1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_until(lambda: is_half_way(out) or sweep.poll() is not None)
        assert sweep.poll() is None
        workers = children_of(sweep.pid)
    finally:
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate()
    assert workers
    wait_until_gone(workers)
    kept = {run.path: run.history() for run in runs_in(out)}
    finished = [run for run in runs_in(out) if len(run.history()) == 40]
    partial = [run for run in runs_in(out) if 0 < len(run.history()) < 40]
    assert finished
    assert partial
    before = [weights(run) for run in finished]

    run(command(tiny, out, "--threads", 1))

    assert [weights(run) for run in finished] == before
    for path, history in kept.items():
        # times are part of it: no epoch was done again
        assert RunFolder(path).history()[: len(history)] == history
    assert_same_sweep(out, local)


def is_half_way(out: Path) -> bool:
    """One run is done and another has begun."""
    epochs = sorted(len(run.history()) for run in runs_in(out))
    return len(epochs) > 1 and epochs[-1] == 40 and any(0 < count < 38 for count in epochs)


def weights(run: RunFolder) -> dict[str, tuple[int, int]]:
    files = [run.weights_file(), *run.path.glob("checkpoints/*"), run.path / STATE]
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


@pytest.fixture(scope="module")
def ray_nodes(tmp_path_factory) -> Iterator[str]:
    """Two nodes of one core each, listening on this machine's loopback alone."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("ray")
    # Ray writes the machine's own address for a loopback one, unless it is told not to
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    code = (
        "import sys\n"
        "from ray.cluster_utils import Cluster\n"
        "node = dict(num_cpus=1, node_ip_address='127.0.0.1', object_store_memory=80 * 2**20)\n"
        "cluster = Cluster(initialize_head=True,"
        " head_node_args=node | dict(include_dashboard=False))\n"
        "cluster.add_node(**node)\n"
        "print(cluster.address, flush=True)\n"
        "sys.stdin.read()\n"
        "cluster.shutdown()\n"
    )
    with (folder / "log").open("w") as log:
        nodes = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        try:
            address = nodes.stdout.readline().strip()
            assert address, (folder / "log").read_text()
            yield address
        finally:
            # they go when their input ends
            nodes.communicate("", timeout=120)


def test_reproduce_on_ray_equals_local_processes(
    local, tiny, ray_nodes, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "ray"
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

    done = run(command(tiny, out, "--ray", ray_nodes))

    assert "[2/2]" in done.stderr
    assert_same_sweep(out, local)


def test_reproduce_takes_a_shipped_configuration_by_name(tmp_path, capsys) -> None:
    given = ["table1", "--config", "digits-small", "--rows", "msp,kep", "--dry-run"]

    assert call("reproduce", *given, "--out", tmp_path) == 0
    assert "10 of 10 runs left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("table1", "--dataset", "cola", "--config", "nothing"), "CONFIG must be a TOML file or"),
        (("table10",), "table1 … table9"),
        (("table1", "--dataset", "mnist"), "a data set must be one of"),
        (("table2", "--dataset", "imdb"), "shifted test sets"),
        (("table1", "--rows", "nothing"), "--rows must be among"),
        (("table1", "--seeds", "0"), "seeds"),
        (("table7", "train.epoch=3"), "train.epoch is no known key"),
        (("table7", "seed=7"), "got seed=7. Give --seeds"),
        (("table7", "method=kep"), "got method=kep. Give --rows"),
        (("table7", "--ray", "127.0.0.1:1"), "--ray must be the address"),
    ],
)
def test_reproduce_tells_a_user_s_mistake(arguments, told, tiny, tmp_path, capsys) -> None:
    config = () if "--dataset" in arguments else ("--config", tiny)
    out = tmp_path / "out"

    assert call("reproduce", *arguments, *config, "--out", out) == 2
    assert told in capsys.readouterr().err
    assert not list(out.glob("*/config.toml"))
