"""What the page says: cards, notes and tables, by what they tell and not by their wording."""

import json
import math
from dataclasses import replace

import pytest
import torch
from report.folders import compared, draw, write_run

from kepsvgp.config.sections import RunConfig
from kepsvgp.data.benchmark import Note
from kepsvgp.methods.post_hoc import FITTED
from kepsvgp.report.context import BenchmarkContext, benchmark_context
from kepsvgp.report.examples import Source
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import write_weights

NO_DATA = Source(None, {})
LABELS = torch.arange(40) % 10


def config(method="kep", seed=0, **sections) -> RunConfig:
    return RunConfig.model_validate({"method": method, "seed": seed, **sections})


def context_of(*runs) -> BenchmarkContext:
    (comparison,) = compared(*runs)
    return benchmark_context(comparison, NO_DATA)


def notes_with(context: BenchmarkContext, *words: str) -> list[str]:
    return [note for note in context.notes if all(word in note for word in words)]


@pytest.fixture
def one_run(tmp_path):
    return write_run(tmp_path / "one", {"kep": {"test": draw(LABELS)}})


def test_seeds_that_were_trained_and_not_evaluated_are_counted(tmp_path) -> None:
    splits = {"kep": {"test": draw(LABELS)}}
    runs = [write_run(tmp_path / str(s), splits, config=config(seed=s)) for s in range(3)]
    assert "3 seeds" in context_of(tmp_path).facts
    for run in runs[1:]:
        (run / "metrics.json").unlink()

    context = context_of(tmp_path)

    assert "3 seeds trained, 1 shown" in context.facts
    assert notes_with(context, "not evaluated", "1, 2")


def test_notes_say_what_is_missing_and_unequal(tmp_path) -> None:
    foreign = draw(-torch.ones(9, dtype=torch.long))
    short, long = {"train": {"epochs": 3}}, {"train": {"epochs": 5}}
    msp = {"test": draw(LABELS)}
    context = context_of(
        write_run(tmp_path / "a", {"kep": {"test": draw(LABELS)}}, config=config(**short)),
        write_run(
            tmp_path / "b",
            {"msp": msp | {"ood/svhn": foreign}},
            config=config("msp", **long),
            notes=["Trained on 5% of the data."],
        ),
        write_run(tmp_path / "c", {"msp": msp}, config=config("msp", seed=1, **long)),
    )

    assert notes_with(context, "KEP-SVGP 1 seed, MSP 2 seeds")
    assert notes_with(context, "KEP-SVGP 3, MSP 5")
    assert notes_with(context, "Trained on 5% of the data.")
    # a seed of MSP has it, the other has not
    assert notes_with(context, "KEP-SVGP, MSP", "svhn")
    assert notes_with(context, "shifted", "--splits shift")


def test_notes_on_sets_that_no_model_was_evaluated_on_are_left_out(tmp_path) -> None:
    splits = {"test": draw(LABELS)}
    plain = write_run(tmp_path / "plain", {"kep": splits})
    shifted = write_run(tmp_path / "shifted", {"kep": splits | {"shift/fog/5": draw(LABELS)}})
    notes = (Note("Generated.", "shift"), Note("Missing.", "ood"), Note("Smaller."))

    for run, expected in ((plain, {"Smaller."}), (shifted, {"Generated.", "Smaller."})):
        (comparison,) = compared(run)
        told = benchmark_context(comparison, Source(None, {}, notes)).notes
        assert {note.text for note in notes} & set(told) == expected


def test_notes_say_which_runs_were_interrupted(tmp_path) -> None:
    msp = {"msp": {"test": draw(LABELS)}}
    context = context_of(
        write_run(tmp_path / "whole", msp, config=config("msp")),
        write_run(tmp_path / "short", msp, config=config("msp", seed=1), epochs=4),
    )

    (note,) = notes_with(context, "stopped")
    assert "short" in note
    assert "4 of 10" in note


def test_a_run_that_diverged_is_left_out_with_a_note(one_run) -> None:
    broken = draw(LABELS)
    broken = replace(broken, probs=broken.probs * math.nan)
    RunFolder(one_run).write_prediction("score", "kep", "test", broken)

    context = context_of(one_run)

    assert context.cards[0].coverage is None
    assert notes_with(context, "not finite")


def test_other_checkpoints_are_listed(one_run) -> None:
    assert context_of(one_run).checkpoints is None
    RunFolder(one_run).add_metrics("last", "kep", {"test": {"accuracy": 0.5, "nll": 2.0}})

    table = context_of(one_run).checkpoints

    assert table is not None
    assert ("last", "50.00%") in [row.cells[:2] for row in table.rows]


def test_models_of_an_ensemble_are_counted_and_are_no_seeds(tmp_path) -> None:
    splits = {"test": draw(LABELS)}
    run = write_run(tmp_path / "a", {"msp": splits, "ensemble": splits}, config=config("msp"))
    other = write_run(tmp_path / "b", {"msp": splits}, config=config("msp", seed=1))
    _, unknown = context_of(run, other).cost.rows
    folder = RunFolder(run).method_folder("score/ensemble")
    write_weights(folder, FITTED, {}, {"stamp": json.dumps({"weights": ["a", "b", "c"]})})

    context = context_of(run, other)

    single, together = context.cost.rows
    assert single.cells == ("35.0 s", "250 ms", "123,456")
    assert together.cells == ("35.0 s × 3 models", "250 ms", "123,456 × 3 models")
    assert unknown.cells == ("35.0 s per model", "250 ms", "123,456 per model")
    assert [card.made_of for card in context.cards] == ["2 seeds", "3 models"]
    assert not notes_with(context, "different numbers of seeds")


def test_foreign_sets_are_shown_by_every_score_that_was_measured(tmp_path) -> None:
    foreign = draw(-torch.ones(9, dtype=torch.long))
    splits = {"test": draw(LABELS), "ood/cifar100": foreign, "ood/svhn": foreign}
    run = write_run(tmp_path / "a", {"kep": splits})
    assert len(context_of(run).more) == 2
    folder = RunFolder(run)
    by_vim = {"ood/svhn": {"ood_auroc": 0.7, "ood_auroc_vim": 0.8, "ood_auroc_novelty": 0.9}}
    folder.add_metrics("score", "kep", by_vim)

    tables = [(caption, table) for caption, table in context_of(run).more if len(table.metrics) > 1]

    far = [table for caption, table in tables if "svhn (far)" in caption]
    near = [table for caption, table in tables if "cifar100 (near)" in caption]
    assert (len(far), len(near)) == (1, 1)
    (cells,) = far[0].rows.values()
    names = ["ood_auroc", "ood_auroc_vim", "ood_auroc_novelty"]
    assert [metric.name for metric in far[0].metrics] == names
    assert [cell.mean for cell in cells] == [0.7, 0.8, 0.9]
