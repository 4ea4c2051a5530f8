"""Sweeps that are killed, starved of disk, started twice or given damaged runs.

Every test run kills one sweep (`tests/cli/test_reproduce.py`); this is the rest.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from breaking import (
    LONG,
    Command,
    Moments,
    assert_explained,
    many,
    remount,
    run_command,
    small_disk,
    timed,
)
from sweeps import TINY, assert_same_sweep, children_of, content_of, wait_until_gone

from kepsvgp.runs.folder import RunFolder

# one worker makes the sweep that they share
pytestmark = [
    pytest.mark.xdist_group("sweeps"),
    pytest.mark.skipif(not LONG, reason="a sweep takes long: make stress runs it"),
]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> tuple[object, ...]:
    """The command but for its output root."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY.replace("epochs = 2", "epochs = 6\nsave_steps = 1"))
    return (
        *("reproduce", "table1", "--config", path, "--rows", "msp,temperature,kep"),
        *("--seeds", 1, "--resamples", 20, "--threads", 1, "--out"),
    )


@pytest.fixture(scope="module")
def undisturbed(processes, given, tmp_path_factory) -> tuple[Path, float]:
    """A sweep that nothing happened to, and how long it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run_command(processes, folder / "first", "data", "list").code == 0
    out = folder / "out"
    return out, timed(Command(processes, folder / "text", *given, out))


def assert_goes_on(processes, text: Path, given: tuple[object, ...], out: Path) -> None:
    ended = run_command(processes, text, *given, out)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("victim", ["sweep", "worker"])
def test_sweep_that_is_killed_goes_on_to_the_same_tables(
    victim, processes, given, undisturbed, tmp_path, tried
) -> None:
    whole, duration = undisturbed
    moments, kills, number = Moments(11, 0.9 * duration, earliest=0.05), 0, 0
    while kills < many(1, 8):
        out = tmp_path / f"out{number}"
        command = Command(processes, tmp_path / "text", *given, out)
        time.sleep(moments.next())
        workers = children_of(command.pid) if command.is_running else []
        if victim == "sweep":
            is_killed = command.interrupt(0, (signal.SIGKILL, signal.SIGTERM)[kills % 2])
        else:
            is_killed = bool(workers)
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        ended = command.wait()
        wait_until_gone(workers)
        if is_killed:
            kills += 1
            if victim == "worker" and ended.code != 0:
                # one job failed with its reason, the sweep came to its end
                assert ended.code == 1, ended
                assert "killed by SIGKILL" in ended.err
                assert "Traceback" not in ended.err
        elif not command.is_running and ended.code == 0:
            number += 1
            moments.missed()
    for out in tmp_path.glob("out*"):
        assert_goes_on(processes, tmp_path / "text", given, out)
        assert_same_sweep(out, whole)
    tried("kills of reproduce or of its workers, then the same tables", kills)


def test_sweep_on_a_full_disk_says_so_and_goes_on_with_room(
    processes, given, undisturbed, tmp_path, tried
) -> None:
    whole, _ = undisturbed
    needed = sum(f.stat().st_size for f in whole.rglob("*") if f.is_file()) // 1024
    sizes = [needed * part // 8 for part in range(1, 1 + many(1, 5))]
    for number, kilobytes in enumerate(sizes):
        with small_disk(tmp_path / f"disk{number}", kilobytes) as disk:
            ended = run_command(processes, tmp_path / "text", *given, disk / "out")
            # the tables could not be written, either
            assert_explained(ended, "No space left on device", str(disk))
            remount(disk, "size=64m")
            assert_goes_on(processes, tmp_path / "text", given, disk / "out")
            assert_same_sweep(disk / "out", whole)
    tried("disks that filled up under reproduce, then the same tables", len(sizes))


def test_interrupted_sweep_ends_with_its_workers_and_goes_on(
    processes, given, undisturbed, tmp_path, tried
) -> None:
    whole, duration = undisturbed
    moments, interrupts = Moments(13, 0.7 * duration, earliest=0.1), 0
    out = tmp_path / "out"
    while interrupts < many(1, 5):
        command = Command(processes, tmp_path / "text", *given, out)
        time.sleep(moments.next())
        workers = children_of(command.pid) if command.is_running else []
        if command.interrupt(0, signal.SIGINT):
            interrupts += 1
            ended = command.wait(60)
            assert ended.code in (130, -signal.SIGINT), ended
            assert "Traceback" not in ended.err
        else:
            command.wait()
            shutil.rmtree(out)
        wait_until_gone(workers)
    assert_goes_on(processes, tmp_path / "text", given, out)
    assert_same_sweep(out, whole)
    tried("Ctrl-C during reproduce: no worker left, no traceback, the same tables", interrupts)


def test_two_sweeps_in_one_folder_harm_nothing(
    processes, given, undisturbed, tmp_path, tried
) -> None:
    whole, _ = undisturbed
    tries = many(1, 3)
    for number in range(tries):
        out = tmp_path / f"out{number}"
        commands = [Command(processes, tmp_path / f"text{n}", *given, out) for n in range(2)]
        for ended in [command.wait() for command in commands]:
            # whoever came second to a run was told so, or found it done
            assert ended.code == 0 or "must not be in use" in ended.err, ended
            assert "Traceback" not in ended.err
        assert_goes_on(processes, tmp_path / "text", given, out)
        assert_same_sweep(out, whole)
    tried("two sweeps in one folder at once, then the same tables", tries)


NAMES = ("config.toml", "state/state.safetensors", "metrics.json", "sweep.json", "history.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_damaged_run_is_a_failed_job_with_its_reason(
    name, processes, given, undisturbed, tmp_path, tried
) -> None:
    whole, _ = undisturbed
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    run = next(folder for folder in out.iterdir() if "-kep-" in folder.name)
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])

    ended = run_command(processes, tmp_path / "text", *given, out)

    assert "Traceback" not in ended.err
    if ended.code == 0:
        # nothing was left to do for which the file is needed: the tables are as they were
        assert_same_tables(out, whole)
    else:
        assert name.rpartition("/")[2] in ended.err
    shutil.rmtree(run)
    assert_goes_on(processes, tmp_path / "text", given, out)
    assert_same_tables(out, whole)
    assert RunFolder(run).history()
    tried("damaged runs under reproduce", 1)


def assert_same_tables(out: Path, expected: Path) -> None:
    for path in (expected / "tables").iterdir():
        assert content_of(out / "tables" / path.name) == content_of(path)
