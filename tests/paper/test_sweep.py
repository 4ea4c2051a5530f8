"""Every table and figure on tiny digits: what is in them, and that the numbers are the runs'."""

import csv
import io
import json
import shutil
import sys

import pytest

from kepsvgp.cli import main
from kepsvgp.data.sets import ood
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import all_metrics, ood_auroc
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper import sweep
from kepsvgp.paper.cells import Cell, Reader, fill
from kepsvgp.paper.declarations import Table
from kepsvgp.paper.evidence import keep_evidence
from kepsvgp.paper.figures import figure_data
from kepsvgp.paper.filled import fill_table
from kepsvgp.paper.findings import inspected
from kepsvgp.paper.formats import as_csv, as_json, latex, markdown
from kepsvgp.paper.inspection import inspect_run
from kepsvgp.paper.plan import row_task
from kepsvgp.paper.records import estimate, left_of, read_record, write_record
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
    assert len(filled.cells) == len(filled.rows) * len(filled.columns)
    for (row, column), cell in filled.cells.items():
        if not cell.reasons:
            assert cell.mean is not None
            continue
        # where a barely trained model is always wrong there is no AUROC
        assert cell.reasons == ("undefined for these predictions",)
        assert column in ("auroc", "fpr95")
        if filled.table.source in ("test", "val"):
            assert min(filled.cells[row, "accuracy"].values) == 0


def test_defaults_are_judged_on_validation_data(swept) -> None:
    filled = swept.filled("defaults")
    assert filled.title == "Open choices of the layer, on validation data: Digits"
    assert not filled.claims
    assert not any("the paper" in note.lower() for note in filled.notes[:1])
    run = RunFolder(swept.out / filled.runs["landmark"][0])
    measured = run.metrics()["score"]["kep"]
    assert filled.cells["landmark", "nll"].values[0] == measured["val"]["nll"]
    assert "test" not in measured


@pytest.mark.parametrize("filled", NAMES, indirect=True)
def test_claims_are_differences_of_the_cells(filled) -> None:
    assert filled.claims or filled.table.name == "table3"
    for claim in filled.claims:
        better, worse = (filled.cells[row, claim.column.key] for row in (claim.better, claim.worse))
        if claim.ours is None:
            assert claim.reason == "undefined for these predictions"
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
    assert len(head) >= len(filled.rows) + 2
    tex = latex(filled)
    assert tex.count("{") == tex.count("}")
    assert tex.isascii()
    body = [line for line in tex.split("\n") if line.endswith(r"\\") and "multicolumn" not in line]
    assert all(line.count(" & ") == len(filled.columns) for line in body)


def test_cells_are_the_metrics_of_the_runs(swept) -> None:
    piece = swept.piece("table1")
    cells = fill(piece.exhibit, piece.study, swept.out)
    reader = Reader(piece.exhibit, piece.study, swept.out)
    row = next(row for row in piece.exhibit.rows if row.key == "temperature")
    for seed in range(2):
        prediction = reader.prediction(row, seed, "test")
        expected = all_metrics(prediction.probs, prediction.targets)
        for column in ("accuracy", "aurc", "ece", "nll"):
            assert cells["temperature", column].values[seed] == pytest.approx(expected[column])


def test_ensembles_average_the_probabilities_of_the_seeds(swept) -> None:
    piece = swept.piece("table1")
    cells = fill(piece.exhibit, piece.study, swept.out)
    reader = Reader(piece.exhibit, piece.study, swept.out)
    row = next(row for row in piece.exhibit.rows if row.key == "kep_ensembles")
    parts = [reader.prediction(row, seed, "test") for seed in range(2)]
    expected = all_metrics((parts[0].probs + parts[1].probs).double() / 2, parts[0].targets)
    assert cells["kep_ensembles", "nll"].values == pytest.approx((expected["nll"],))


def test_shift_cells_are_means_over_all_corruptions(swept) -> None:
    piece = swept.piece("table2")
    cells = fill(piece.exhibit, piece.study, swept.out)
    reader = Reader(piece.exhibit, piece.study, swept.out)
    row = next(row for row in piece.exhibit.rows if row.key == "kep")
    run = reader.run(row, 1)
    files = sorted((run.path / "predictions" / "score" / "kep" / "shift").rglob("*.safetensors"))
    assert len(files) == 75
    values = []
    for file in files:
        prediction = Prediction.load(file)
        values.append((prediction.predicted == prediction.targets).double().mean().item())
    assert cells["kep", "accuracy"].values[1] == pytest.approx(sum(values) / 75)


def test_ood_cells_are_told_from_the_test_set_by_confidence(swept) -> None:
    piece = swept.piece("table3")
    cells = fill(piece.exhibit, piece.study, swept.out)
    reader = Reader(piece.exhibit, piece.study, swept.out)
    row = next(row for row in piece.exhibit.rows if row.key == "mc_dropout")
    familiar, foreign = (reader.prediction(row, 0, s) for s in ("test", "ood/photographs"))
    expected = ood_auroc(-familiar.confidence, -foreign.confidence, positive="in")
    assert cells["mc_dropout", "ood_auroc/photographs"].values[0] == pytest.approx(expected)


def test_claims_on_other_data_are_those_of_the_paper_s(swept) -> None:
    filled = swept.filled("table1")
    assert all(cell.published is None for cell in filled.cells.values())
    # claims on a data set that the paper does not have are those of one that it has
    assert {claim.origin for claim in filled.claims} == {"cifar10", "imdb"}


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
        name: figure_data(swept.piece(name).exhibit, swept.study(), swept.out).data
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
    jobs = sweep.jobs_of(swept.pieces)
    assert sweep.left_jobs(jobs, swept.out) == sweep.Jobs([], [])
    assert estimate(jobs.tasks, swept.out) == (0.0, 0)


def test_time_left_is_estimated_from_what_was_run(swept) -> None:
    study = swept.study().model_copy(update={"seeds": 3})
    piece = swept.piece("table7")._replace(study=study)
    left = sweep.left_jobs(sweep.jobs_of([piece]), swept.out)
    assert len(left.tasks) == 2
    found = estimate(left.tasks, swept.out)
    assert found.unknown == 0
    assert 0 < found.seconds < 600
    assert estimate(left.tasks, swept.out, jobs=2).seconds == pytest.approx(found.seconds / 2)


def test_time_left_of_unknown_work_is_unknown(swept, tmp_path) -> None:
    tasks = sweep.jobs_of([swept.piece("table7")]).tasks
    found = estimate(tasks, tmp_path)
    assert found.seconds == 0
    assert found.unknown == sum(1 + len(task.asks) for task in tasks)


@pytest.mark.parametrize(
    "names",
    [
        (*(name for name in EVERY if name not in FEW),),
        ("table2", "--rows", "msp,kep,deep_ensembles,kep_ensembles"),
        ("figure5", "--rows", "msp,kep"),
    ],
    ids=lambda names: names[0],
)
def test_command_writes_every_table_and_figure(
    names, swept, tiny, monkeypatch, capsys, tmp_path
) -> None:
    # tables and figures of other tests stay as they are
    out = tmp_path / "out"
    out.mkdir()
    for path in swept.out.iterdir():
        (out / path.name).symlink_to(path)
    given = [*names, "--config", tiny, "--seeds", 2, "--resamples", 20, "--out", out]
    monkeypatch.setattr(sys, "argv", ["kepsvgp", "reproduce", *map(str, given)])

    with pytest.raises(SystemExit) as end:
        main()

    assert not end.value.code
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


def test_rows_can_be_chosen_and_added() -> None:
    table = sweep.exhibits(["table1"], ["kep", "sngp"])[0]
    assert [row.key for row in table.rows] == ["kep", "sngp"]
    with pytest.raises(UserError, match="--rows must be among"):
        sweep.exhibits(["table1"], ["kepp"])
    with pytest.raises(UserError, match="must leave table6 a row"):
        sweep.exhibits(["table6"], ["msp"])


def test_missing_runs_are_shown_as_such(swept, tmp_path) -> None:
    piece = swept.piece("table7")
    filled = fill_table(piece.exhibit, piece.study, tmp_path)
    assert all(cell == Cell((), cell.reasons) for cell in filled.cells.values())
    assert filled.cells["kep", "nll"].reasons == ("seed 0 not run yet", "seed 1 not run yet")
    assert {claim.verdict for claim in filled.claims} == {"unknown"}
    assert "seed 1 not run yet" in markdown(filled)
    assert json.loads(as_json(filled))["cells"][0]["mean"] is None


def test_tables_are_made_for_all_data_sets_of_the_paper_by_default(swept) -> None:
    found = sweep.pieces(
        sweep.exhibits(["table4", "figure2"]),
        None,
        lambda name: swept.study().model_copy(update={"dataset": name}),
    )
    assert [piece.study.dataset for piece in found] == [
        *("cifar10", "cifar100", "imdb", "cola"),
        "cifar10",
    ]
    assert isinstance(found[0].exhibit, Table)


def test_an_unknown_data_set_is_refused(swept) -> None:
    with pytest.raises(UserError, match="--dataset must be one of digits"):
        sweep.pieces(sweep.exhibits(["table1"]), "mnist", lambda _: swept.study())


def test_evidence_is_small_and_whole(swept, tmp_path) -> None:
    piece = swept.piece("table7")
    sweep.write_table(piece, swept.out, resamples=20)
    written = keep_evidence([piece], swept.out, tmp_path)
    names = {file.relative_to(tmp_path).as_posix() for file in written}
    assert {f"tables/{piece.stem}.{suffix}" for suffix in ("md", "csv", "tex", "json")} <= names
    runs = {run for each in swept.filled("table7").runs.values() for run in each}
    for run in runs:
        assert (tmp_path / "runs" / run / "metrics.json").read_bytes() == (
            swept.out / run / "metrics.json"
        ).read_bytes()
        assert {f"runs/{run}/config.toml", f"runs/{run}/history.jsonl"} <= names
    assert not list(tmp_path.rglob("*.safetensors"))
    assert {name.split("/")[1] for name in names if name.startswith("runs/")} == runs


def test_report_shows_variants_where_they_are_few(swept) -> None:
    table5 = [swept.piece("table5")]
    assert len(sweep.reported_runs(table5, swept.out)) == 4 * 2
    methods = {run.name.split("-")[1] for run in sweep.reported_runs(swept.pieces, swept.out)}
    assert methods == {"msp", "kep", "svdkl", "sgpa"}
    assert len(sweep.reported_runs(swept.pieces, swept.out)) == 4 * 2


def test_sets_that_come_later_are_left_to_do(swept, monkeypatch) -> None:
    exhibit, study = swept.piece("table3")
    task = row_task(exhibit, exhibit.rows_for("digits")[0], study, 0)
    assert left_of(task, swept.out).is_nothing
    monkeypatch.setattr(ood, "names_now", lambda _: ["svhn"])
    assert [ask.splits for ask in left_of(task, swept.out).asks] == ["ood"]


def test_spectra_of_other_weights_or_examples_are_not_the_figure_s(swept, tmp_path) -> None:
    exhibit, study = swept.piece("figure4")
    task = row_task(exhibit, exhibit.rows[0], study, 0)
    run = RunFolder(swept.out / task.name)
    found = inspected(run, "score")
    assert found is not None
    assert found.checkpoint == "score"
    assert inspected(run, "last") is None
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    inspect_run(copy, copy.benchmark(), checkpoint="score", split="val", examples=3)
    assert inspected(copy, "score") is None


def test_notes_are_those_of_when_it_was_measured(swept, tmp_path) -> None:
    exhibit, study = swept.piece("table2")
    out = shutil.copytree(swept.out, tmp_path / "out")
    assert any("generated" in note for note in Reader(exhibit, study, out).notes())
    for folder in out.glob("digits-*"):
        run = RunFolder(folder)
        write_record(run, read_record(run)._replace(notes=()))
    assert not Reader(exhibit, study, out).notes()
