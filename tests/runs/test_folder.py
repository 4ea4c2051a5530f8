import json

import numpy as np
import pytest
import torch
from report.folders import draw, made_inspection, write_run

from kepsvgp.errors import UserError
from kepsvgp.runs.folder import RunFolder, find_runs


def test_find_runs_looks_inside_a_folder_of_runs(tmp_path) -> None:
    runs = [RunFolder(write_run(tmp_path / name, {})) for name in ("a", "b/c")]
    (tmp_path / "b" / "config.toml").write_text("of = 'another program'")

    assert find_runs([tmp_path]) == runs
    assert find_runs([runs[1].path, runs[1].path]) == runs[1:]


def test_find_runs_says_what_is_no_run(tmp_path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(UserError, match="kepsvgp train"):
        find_runs([tmp_path])


def test_splits_are_those_with_predictions(tmp_path) -> None:
    parts = dict.fromkeys(("test", "shift/fog/5"), draw(torch.arange(20) % 10))
    run = RunFolder(write_run(tmp_path / "run", {"kep": parts}))

    assert run.splits("score", "kep") == sorted(parts)
    torch.testing.assert_close(run.prediction("score", "kep", "test").probs, parts["test"].probs)


def test_inspection_round_trip(tmp_path) -> None:
    written = made_inspection(5)
    run = RunFolder(write_run(tmp_path / "run", {}, inspection=written))

    found = run.inspection()

    assert found == written
    last = written.layers[1]
    np.testing.assert_allclose(last.cumulative, np.cumsum(last.singular_values))
    assert run.inspection("last") is None
    assert RunFolder(write_run(tmp_path / "other", {})).inspection() is None


def test_wrong_field_of_an_inspection_is_named(tmp_path) -> None:
    run = RunFolder(write_run(tmp_path / "run", {}, inspection=made_inspection(5)))
    content = json.loads(run.inspection_file.read_text())
    content["layers"][1]["heads"] = "four"
    run.inspection_file.write_text(json.dumps(content))

    with pytest.raises(UserError, match=r"layers\.1\.heads|inspect\.json"):
        run.inspection()
