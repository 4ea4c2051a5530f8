"""Every table and figure on tiny digits: what is in them, and that the numbers are the runs'."""

import csv
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from commands import call

from kepsvgp.data.sets import ood
from kepsvgp.files import CheckedFolder
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import all_metrics, ood_metrics
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper import claims
from kepsvgp.paper.cells import UNDEFINED, Missing, NumberCell, Reader, Reason, _by_score, fill
from kepsvgp.paper.chosen import find
from kepsvgp.paper.claims import compare_pairs
from kepsvgp.paper.declarations import MethodRow
from kepsvgp.paper.figures import figure_data
from kepsvgp.paper.filled import fill_table
from kepsvgp.paper.findings import inspected
from kepsvgp.paper.formats import as_csv, as_json, latex, markdown
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.paper.notes import data_notes
from kepsvgp.paper.plan import make_plan
from kepsvgp.paper.published import published
from kepsvgp.paper.records import Left, OutputRoot, left_of, read_record, write_record
from kepsvgp.paper.sweep import Sweep, reported_runs
from kepsvgp.paper.tables import NAMES as EVERY
from kepsvgp.paper.tables import TABLES
from kepsvgp.runs.folder import RunFolder

FEW = ("table2", "figure5")
NAMES = [table.name for table in TABLES]
# one worker makes the sweep that they share
pytestmark = pytest.mark.xdist_group("swept")


@pytest.fixture
def filled(swept, request):
    return swept.filled(request.param)


@pytest.mark.parametrize("filled", [*NAMES, "defaults"], indirect=True)
def test_tables_are_full(filled) -> None:
    assert len(filled.cells) == len(filled.planned.rows) * len(filled.columns)
    for (row, column), cell in filled.cells.items():
        if not cell.reasons:
            assert cell.mean is not None
            continue
        # where a barely trained model is always wrong there is no AUROC
        assert cell.reasons == (UNDEFINED,)
        assert column in ("auroc", "fpr95")
        if filled.table.source in ("test", "val"):
            assert min(filled.cells[row, "accuracy"].values) == 0


def test_defaults_are_judged_on_validation_data(swept) -> None:
    filled = swept.filled("defaults")
    assert filled.title == "Open choices of the layer, on validation data: Digits"
    assert not filled.claims
    assert not any("the paper" in note.lower() for note in filled.notes[:1])
    run = RunFolder(swept.out / filled.planned.tasks["landmark", 0].name)
    measured = run.metrics()["score"]["kep"]
    assert filled.cells["landmark", "nll"].values[0] == measured["val"]["nll"]
    assert "test" not in measured


@pytest.mark.parametrize("filled", NAMES, indirect=True)
def test_claims_are_differences_of_the_cells(filled, swept, monkeypatch) -> None:
    # the paper did not measure the digits, so that it claims nothing of them
    assert not filled.claims
    # the numbers of one of its data sets in their place
    numbers = next(iter(published(filled.table.name).values()))
    monkeypatch.setattr(claims, "published", lambda *_: {"digits": numbers})

    found = compare_pairs(filled.table, Reader(filled.planned, swept.root), resamples=50).claims

    assert found or filled.table.name == "table3"
    for claim in found:
        better, worse = (filled.cells[row, claim.column.key] for row in (claim.better, claim.worse))
        if claim.ours is None:
            assert claim.reason == UNDEFINED
            assert better.reasons or worse.reasons
            continue
        assert claim.ours.difference == pytest.approx(better.mean - worse.mean, abs=1e-6)
        assert claim.ours.low <= claim.ours.high
        # the paper's numbers stand in the order that is claimed
        first, second = claim.printed
        assert (first.mean > second.mean) == METRICS[claim.column.metric].is_higher_better


@pytest.mark.parametrize("filled", [*NAMES, "defaults"], indirect=True)
def test_formats_agree(filled) -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(filled))))
    content = json.loads(as_json(filled))
    assert len(lines) == len(content["cells"]) == len(filled.cells)
    scales = {column["key"]: column["scale"] for column in content["columns"]}
    for line, cell in zip(lines, content["cells"], strict=True):
        assert (line["row"], line["column"]) == (cell["row"], cell["column"])
        if cell["mean"] is not None:
            assert float(line["ours_mean"]) == pytest.approx(cell["mean"] * scales[cell["column"]])
    text = markdown(filled)
    assert all(f"- {note}" in text for note in filled.notes)
    table = [line for line in text.split("\n") if line.startswith("| ")]
    width = len(filled.columns) + 2
    head = [line for line in table if line.count(" | ") == width - 2]
    assert len(head) >= len(filled.planned.rows) + 2
    tex = latex(filled)
    assert tex.count("{") == tex.count("}")
    assert tex.isascii()
    body = [line for line in tex.split("\n") if line.endswith(r"\\") and "multicolumn" not in line]
    assert all(line.count(" & ") == len(filled.columns) for line in body)


def read(swept, table: str, key: str) -> tuple[dict, Reader, MethodRow]:
    """The cells of a table, what they were read with, and one of its rows."""
    planned = swept.planned(table)
    row = next(row for row in planned.rows if row.key == key)
    return swept.filled(table).cells, Reader(planned, swept.root), row


def test_cells_are_the_metrics_of_the_runs(swept) -> None:
    cells, reader, row = read(swept, "table1", "temperature")
    for seed in range(2):
        prediction = reader.prediction(row, seed, "test")
        expected = all_metrics(prediction.probs, prediction.targets)
        for column in ("accuracy", "aurc", "ece", "nll"):
            assert cells["temperature", column].values[seed] == pytest.approx(expected[column])


def test_ensembles_average_the_probabilities_of_the_seeds(swept) -> None:
    cells, reader, row = read(swept, "table1", "kep_ensembles")
    parts = [reader.prediction(row, seed, "test") for seed in range(2)]
    expected = all_metrics((parts[0].probs + parts[1].probs).double() / 2, parts[0].targets)
    assert cells["kep_ensembles", "nll"].values == pytest.approx((expected["nll"],))


def test_shift_cells_are_means_over_all_corruptions(swept) -> None:
    cells, reader, row = read(swept, "table2", "kep")
    run = reader.run(row, 1).folder
    files = sorted((run.path / "predictions" / "score" / "kep" / "shift").rglob("*.safetensors"))
    assert len(files) == 75
    values = []
    for file in files:
        prediction = Prediction.load(file)
        values.append((prediction.predicted == prediction.targets).double().mean().item())
    assert cells["kep", "accuracy"].values[1] == pytest.approx(sum(values) / 75)


def test_ood_cells_are_told_from_the_test_set_by_confidence(swept) -> None:
    cells, reader, row = read(swept, "table3", "mc_dropout")
    familiar, foreign = (reader.prediction(row, 0, s) for s in ("test", "ood/photographs"))
    expected = ood_metrics(-familiar.confidence, -foreign.confidence, positive="in")["ood_auroc"]
    assert cells["mc_dropout", "ood_auroc/photographs"].values[0] == pytest.approx(expected)


def test_ood_cells_of_other_scores_are_what_the_runs_measured(swept) -> None:
    cells, reader, row = read(swept, "table3", "kep/novelty")
    familiar, foreign = (reader.prediction(row, 1, s) for s in ("test", "ood/photographs"))
    expected = ood_metrics(familiar.novelty, foreign.novelty, positive="out")["ood_auroc"]
    assert cells["kep/novelty", "ood_auroc/photographs"].values[1] == pytest.approx(expected)
    measured = reader.metrics(row, 1)["ood/photographs"]
    found = cells["msp/vim", "ood_aupr/photographs"].values
    msp = next(row for row in reader.planned.rows if row.key == "msp")
    assert found[1] == reader.metrics(msp, 1)["ood/photographs"]["ood_aupr_vim"]
    assert cells["kep", "ood_auroc/photographs"].values[1] == measured["ood_auroc"]
    # runs of before have not got them
    old = {name: value for name, value in measured.items() if not name.endswith("_novelty")}
    with pytest.raises(Missing, match="novelty"):
        _by_score(old, "novelty")


def test_notes_say_what_was_reduced_and_generated(swept) -> None:
    one, two, three = (
        "\n".join(swept.filled(name).notes) for name in ("table1", "table2", "table3")
    )
    assert "2 seeds (the paper: 5)" in one
    assert "train.epochs=2" in one
    assert "for Digits it printed no numbers" in one
    assert "best validation score" in one
    # a remark about corruptions is for the table that shows them
    assert "generated" in two
    assert "first 16 of 48 test images" in two
    assert "generated" not in one
    assert "positive class" in three


def test_figures_have_their_data(swept) -> None:
    data = {
        name: figure_data(swept.planned(name), swept.root).data
        for name in ("figure2", "figure3", "figure4", "figure5")
    }
    assert list(data["figure2"]) == ["Accuracy", "AURC", "ECE", "NLL"]
    bars = data["figure2"]["Accuracy"]
    assert list(bars) == ["MSP", "KEP-SVGP"]
    assert len(bars["MSP"]) == 15
    assert all(len(values) == 2 for values in bars["MSP"].values())
    groups = data["figure3"]["KEP-SVGP"]
    assert len(groups["ID correct"]) + len(groups["ID wrong"]) == 48
    assert len(groups["OOD photographs"]) > 100
    kinds = [[layer["kind"] for layer in m["layers"]] for m in data["figure4"].values()]
    assert kinds == [["softmax", "softmax"], ["softmax", "kep"], ["kep", "kep"]]
    assert list(data["figure5"]) == ["MSP", "KEP-SVGP"]
    assert len(data["figure5"]["MSP"]) == 15


def test_a_second_sweep_has_nothing_left_to_do(swept) -> None:
    again = Sweep(swept.plan, swept.out)
    assert (again.tasks_left, again.timings_left) == ([], [])
    assert again.estimate() == (0.0, 0)


def test_time_left_is_estimated_from_what_was_run(swept) -> None:
    study = swept.study().model_copy(update={"seeds": 3})
    sweep = Sweep(make_plan([find("table7")], "digits", lambda *_: study), swept.out)
    assert len(sweep.tasks_left) == 2
    found = sweep.estimate()
    assert found.unknown == 0
    assert 0 < found.seconds < 600
    assert sweep.estimate(jobs=2).seconds == pytest.approx(found.seconds / 2)


def test_time_left_of_unknown_work_is_unknown_until_a_job_like_it_ended(swept, tmp_path) -> None:
    plan = make_plan([find("table7")], "digits", lambda *_: swept.study())
    sweep = Sweep(plan, tmp_path)
    found = sweep.estimate()
    assert found == (0, sum(1 + len(task.evaluations) for task in plan.tasks))
    done = plan.tasks[0]
    shutil.copytree(swept.out / done.name, tmp_path / done.name)
    sweep.root.changed(done.name)

    sweep.ended(done.name)

    assert done not in sweep.tasks_left
    # the same method with the other seed is known now
    assert sweep.estimate().unknown == found.unknown // 2
    assert sweep.estimate().seconds > 0


def test_planning_and_filling_read_no_file_of_a_run_twice(swept, monkeypatch) -> None:
    read: list[Path] = []
    check = CheckedFolder.check

    def watched(files: CheckedFolder, name: str) -> Path:
        read.append(files.path / name)
        return check(files, name)

    monkeypatch.setattr(CheckedFolder, "check", watched)

    sweep = Sweep(swept.plan, swept.out)
    sweep.estimate()
    for name in ("table1", "table4"):
        fill(swept.planned(name).exhibit, Reader(swept.planned(name), sweep.root))

    files = Counter(path for path in read if path.name in ("sweep.json", "metrics.json"))
    assert files
    assert max(files.values()) == 1


@pytest.mark.parametrize(
    "names",
    [
        (*(name for name in EVERY if name not in FEW),),
        ("table2", "--rows", "msp,kep,deep_ensembles,kep_ensembles"),
        ("figure5", "--rows", "msp,kep"),
    ],
    ids=lambda names: names[0],
)
def test_command_writes_every_table_and_figure(names, swept, tiny, capsys, tmp_path) -> None:
    # tables and figures of other tests stay as they are
    out = tmp_path / "out"
    out.mkdir()
    for path in swept.out.iterdir():
        (out / path.name).symlink_to(path)
    given = [*names, "--config", tiny, "--seeds", 2, "--resamples", 20, "--out", out]

    assert call("reproduce", *given) == 0
    shown = capsys.readouterr()
    assert "[1/" not in shown.err
    for name in names:
        if name.startswith("table"):
            assert (out / "tables" / f"{name}-digits-tiny.tex").exists()
            assert f"Table {name[-1]}. " in shown.out
        elif name.startswith("figure"):
            path = out / "figures" / f"{name}-digits-tiny.png"
            assert path.read_bytes()[:4] == b"\x89PNG"
            assert f"Figure {name[-1]}. " in shown.out


def test_missing_runs_are_shown_as_such(swept, tmp_path) -> None:
    filled = fill_table(swept.planned("table7"), OutputRoot(tmp_path))
    assert all(cell == NumberCell((), cell.reasons) for cell in filled.cells.values())
    reasons = filled.cells["kep", "nll"].reasons
    assert reasons == tuple(Reason("not done", f"seed {seed} not run yet") for seed in range(2))
    assert "seed 1 not run yet" in markdown(filled)
    assert json.loads(as_json(filled))["cells"][0]["mean"] is None


def test_report_shows_variants_where_they_are_few(swept) -> None:
    sweep = Sweep(swept.plan, swept.out)
    assert len(reported_runs([swept.planned("table5")], sweep)) == 4 * 2
    many = reported_runs(swept.plan.exhibits, sweep)
    assert {run.name.split("-")[1] for run in many} == {"msp", "kep", "svdkl", "sgpa"}
    assert len(many) == 4 * 2


def test_sets_that_come_later_are_left_to_do(swept, monkeypatch) -> None:
    planned = swept.planned("table3")
    task = planned.tasks["msp", 0]
    assert left_of(task, swept.root.run(task.name)) == Left()
    monkeypatch.setattr(ood, "names_now", lambda *_: ["svhn"])
    left = left_of(task, swept.root.run(task.name))
    assert [evaluation.splits for evaluation in left.evaluations] == ["ood"]


def test_spectra_of_other_weights_or_examples_are_not_the_figure_s(swept, tmp_path) -> None:
    run = RunFolder(swept.out / swept.planned("figure4").tasks["msp", 0].name)
    found = inspected(run, "score")
    assert found is not None
    assert found.checkpoint == "score"
    assert inspected(run, "last") is None
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    inspect_run(copy, copy.benchmark(), checkpoint="score", split="val", examples=3)
    assert inspected(copy, "score") is None


def test_notes_are_those_of_when_it_was_measured(swept, tmp_path) -> None:
    planned = swept.planned("table2")
    assert any("generated" in note for note in data_notes(planned, swept.root))
    for name in {task.name for task in planned.tasks.values()}:
        run = RunFolder(shutil.copytree(swept.out / name, tmp_path / name))
        write_record(run, read_record(run)._replace(notes=()))
    assert not data_notes(planned, OutputRoot(tmp_path))
