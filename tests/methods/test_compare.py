import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from methods.test_methods import settings

from kepsvgp.data import load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.methods.compare import Comparison, compare, rows


def test_comparison_trains_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    config = settings("kep")
    benchmark = load_benchmark(config.data)
    first = compare(
        config, benchmark, tmp_path, methods=["msp", "temperature", "ensemble"], num_seeds=2
    )

    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"msp-0", "msp-1"}
    assert list(first.results) == ["msp", "temperature", "ensemble"]
    accuracy = {name: first.results[name]["test"]["accuracy"] for name in first.results}
    # scaling changes no label, an ensemble is one for both seeds
    assert accuracy["temperature"] == accuracy["msp"]
    assert [len(values) for values in accuracy.values()] == [2, 2, 1]

    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("msp-*/checkpoints/*")}
    second = compare(config, benchmark, tmp_path, methods=["msp", "kep"], num_seeds=1)
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert second.results["msp"]["test"]["nll"] == first.results["msp"]["test"]["nll"][:1]
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert saved["results"]["kep"]["test"]["nll"] == second.results["kep"]["test"]["nll"]


def test_a_method_that_must_be_fitted_again_is_measured_on_all_sets(tmp_path: Path) -> None:
    config = settings("msp")
    benchmark = load_benchmark(config.data)
    compare(config, benchmark, tmp_path, methods=["temperature"], splits=["test"])
    shutil.rmtree(tmp_path / "msp-0" / "methods")

    both = compare(config, benchmark, tmp_path, methods=["temperature"], splits=["test", "val"])

    assert list(both.results["temperature"]) == ["test", "val"]


def test_table_has_mean_and_deviation() -> None:
    one: Any = {"test": {"nll": [1.0, 3.0]}}
    alone: Any = {"test": {"nll": [0.5]}}
    comparison = Comparison((0, 1), {"msp": one, "ensemble": alone})

    assert list(rows(comparison, "test", ["nll"])) == [
        # standard deviation of 1 and 3 with n − 1: √2
        ["msp", "2.000 ± 1.414"],
        ["ensemble", "0.500"],
    ]


@pytest.mark.parametrize(
    ("methods", "message"),
    [(["ensemble"], "--seeds 5"), ([], "at least one"), (["softmax"], "must be one of")],
)
def test_what_cannot_be_compared_is_refused_before_training(
    methods: list[str], message: str, tmp_path: Path
) -> None:
    config = settings("msp")
    benchmark = load_benchmark(config.data)
    with pytest.raises(UserError, match=message):
        compare(config, benchmark, tmp_path / "out", methods=methods)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("method", "library"), [("svdkl", "gpytorch"), ("kep+kfllla", "laplace")])
def test_missing_library_is_named_before_anything_is_trained(
    method: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    config = settings("msp")
    with pytest.raises(UserError, match=r"pip install 'kepsvgp\["):
        compare(config, load_benchmark(config.data), tmp_path / "out", methods=["msp", method])
    assert not (tmp_path / "out").exists()
