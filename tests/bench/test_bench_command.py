import json
import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kepsvgp", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_bench_prints_one_json_document() -> None:
    done = run(
        "predict", "scaling", "metrics", "--json", "--small", "--rounds", "1", "--threads", "1"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["machine"]["threads"] == 1
    assert set(document["suites"]) == {"predict", "scaling", "metrics"}
    first = document["suites"]["predict"][0]
    assert first["contenders"][first["baseline"]]["ratio"] == 1.0
    assert first["limit"]["must"] == 1.6
    assert document["suites"]["scaling"][0]["lengths"] == [256, 512, 1024]


@pytest.mark.slow
def test_bench_prints_tables() -> None:
    done = run("train", "--small", "--rounds", "1", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "training step" in done.stdout
    assert "must be ≤ 0.75" in done.stdout


def test_bench_refuses_what_it_does_not_know() -> None:
    done = run("lunch")
    assert done.returncode == 2
    assert "lunch" in done.stderr
