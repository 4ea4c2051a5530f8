import shutil

import numpy as np
import pytest
import torch
from report.folders import draw, made_spectra, write_run

from kepsvgp.data.benchmark import Note
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction
from kepsvgp.report.runs import read_predictions, read_run
from kepsvgp.runs.folder import RunFolder, find_runs
from kepsvgp.runs.inspection import Inspection


def test_read_run_has_everything_that_was_written(digits_runs) -> None:
    run = read_run(digits_runs[1])

    assert (run.method, run.seed, run.benchmark) == ("msp", 0, "digits")
    assert run.checkpoint() == "score"
    assert len(run.history) == 4
    assert run.parameters == 123_456
    assert run.notes == (Note("Corruptions were generated here."),)
    assert "ood/photographs" in run.splits("score", "temperature")
    assert run.predictions("score", "msp", "nothing") is None


def test_read_predictions_sorts_by_position(tmp_path) -> None:
    shuffled = torch.tensor([3, 0, 2, 1])
    whole = draw(torch.tensor([5, 6, 7, 8]))
    whole[shuffled].save(tmp_path / "test.safetensors")

    found = read_predictions(tmp_path / "test.safetensors")

    assert found.index.tolist() == [0, 1, 2, 3]
    assert found.labels.tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(found.probs, whole.probs.numpy())
    np.testing.assert_allclose(found.entropy, whole.entropy.numpy(), atol=1e-6)
    np.testing.assert_array_equal(found.confidence, whole.confidence.numpy())


def test_read_predictions_without_labels_counts_them_unknown(tmp_path) -> None:
    probs = torch.tensor([[0.9, 0.1]])
    Prediction(probs, torch.tensor([0.3])).save(tmp_path / "x.safetensors")

    assert read_predictions(tmp_path / "x.safetensors").labels.tolist() == [-1]


@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"\xff" * 64])
def test_read_predictions_names_a_damaged_file(tmp_path, content) -> None:
    path = tmp_path / "test.safetensors"
    path.write_bytes(content)

    with pytest.raises(UserError, match=r"test\.safetensors .*damaged.*kepsvgp evaluate"):
        read_predictions(path)


def test_find_runs_looks_inside_a_folder_of_runs(digits_runs) -> None:
    parent = digits_runs[0].parent

    assert [run.path for run in find_runs([parent])] == sorted(digits_runs)
    assert find_runs([digits_runs[0], digits_runs[0]]) == [RunFolder(digits_runs[0])]


def test_find_runs_says_what_is_no_run(tmp_path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(UserError, match="kepsvgp train"):
        find_runs([tmp_path])


def test_read_run_asks_for_an_evaluation(digits_runs, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(digits_runs[0], run)
    (run / "metrics.json").unlink()

    with pytest.raises(UserError, match="kepsvgp evaluate"):
        read_run(run)


def test_read_run_names_a_damaged_history(digits_runs, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(digits_runs[0], run)
    with (run / "history.jsonl").open("a") as file:
        file.write('{"epoch": 5, "tr')

    with pytest.raises(UserError, match=r"history\.jsonl .*damaged"):
        read_run(run)


def test_checkpoint_that_was_not_evaluated_is_refused(digits_runs) -> None:
    run = read_run(digits_runs[0])

    with pytest.raises(UserError, match="'last'; it has score"):
        run.checkpoint("last")


def test_inspection_round_trip(tmp_path) -> None:
    written = made_spectra(5)
    run = RunFolder(write_run(tmp_path / "run", {}, spectra=written))

    found = run.inspection()

    assert found is not None
    assert found == Inspection.model_validate(written)
    np.testing.assert_allclose(
        found.layers[1].cumulative, np.cumsum(written["layers"][1]["singular_values"])
    )
    assert run.inspection("last") is None
    assert RunFolder(write_run(tmp_path / "other", {})).inspection() is None


def test_wrong_field_of_an_inspection_is_named(tmp_path) -> None:
    wrong = made_spectra(5)
    wrong["layers"][1]["heads"] = "four"
    run = RunFolder(write_run(tmp_path / "run", {}, spectra=wrong))

    with pytest.raises(UserError, match=r"layers\.1\.heads"):
        run.inspection()
