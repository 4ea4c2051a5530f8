import math
import shutil

import numpy as np
import pytest
import torch
from report.folders import compared, draw, write_run

from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction
from kepsvgp.report.answers import answers_of
from kepsvgp.report.labels import name_of
from kepsvgp.report.models import Comparison, compare
from kepsvgp.runs.folder import RunFolder

LABELS = torch.arange(60) % 10


@pytest.fixture
def make_run(tmp_path):
    """Writes a run of KEP-SVGP with these settings, in a folder of its own."""

    def make(name: str, *, labels=LABELS, epochs: int | None = None, **settings):
        config = RunConfig.model_validate({"method": "kep", **settings})
        splits = {config.method: {"test": draw(labels, seed=config.seed)}}
        return write_run(tmp_path / name, splits, config=config, epochs=epochs)

    return make


def models_of(comparison: Comparison) -> list[tuple[str, int]]:
    return [(model.label, len(model.members)) for model in comparison.models]


def test_answers_are_in_the_order_of_positions() -> None:
    whole = draw(torch.tensor([5, 6, 7, 8]))

    found = answers_of(whole[torch.tensor([3, 0, 2, 1])])

    assert found is not None
    assert found.index.tolist() == [0, 1, 2, 3]
    assert found.labels.tolist() == [5, 6, 7, 8]
    for name in ("probs", "entropy", "confidence", "aleatoric", "predicted"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name).numpy())


def test_answers_have_no_unknown_targets_right_and_are_finite() -> None:
    found = answers_of(Prediction(torch.tensor([[0.9, 0.1]]), torch.tensor([0.3])))

    assert found is not None
    assert found.labels.tolist() == [-1]
    assert not found.correct.any()
    assert answers_of(Prediction(torch.tensor([[math.nan, 0.1]]), torch.tensor([0.3]))) is None


def test_seeds_of_one_method_are_taken_together(digits_runs) -> None:
    (comparison,) = compared(*digits_runs)

    assert comparison.title == "digits"
    assert models_of(comparison) == [("KEP-SVGP", 2), ("MSP", 2), ("Temperature scaling", 2)]
    assert [member.seed for member in comparison.models[0].members] == [0, 1]


def test_settings_of_other_methods_make_no_other_model(make_run) -> None:
    features = {"svdkl": {"num_features": 16}}
    runs = [make_run("a"), make_run("b", seed=1, model=features)]

    (comparison,) = compared(*runs)

    assert models_of(comparison) == [("KEP-SVGP", 2)]


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        (
            [{"model": {"kep": {"rank": 5}}}, {"model": {"kep": {"rank": 10}}}],
            ["KEP-SVGP (rank=5)", "KEP-SVGP (rank=10)"],
        ),
        # of many settings, those in which one is not like most
        (
            [
                {},
                {"model": {"kep": {"rank": 7}}},
                {"model": {"kep": {"merge": "add", "noise": "token"}}},
                {"objective": {"ksvd_weight": 0.25}},
            ],
            [
                "KEP-SVGP",
                "KEP-SVGP (rank=7)",
                "KEP-SVGP (merge=add, noise=token)",
                "KEP-SVGP (ksvd_weight=0.25)",
            ],
        ),
    ],
)
def test_configurations_of_one_method_are_named_by_their_settings(
    make_run, changes, labels
) -> None:
    runs = [
        make_run(f"{number}-{seed}", seed=seed, **change)
        for number, change in enumerate(changes)
        for seed in (0, 1)
    ]

    (comparison,) = compared(*runs)

    assert models_of(comparison) == [(label, 2) for label in labels]


@pytest.mark.parametrize(
    ("trained", "method", "name"),
    [
        ("kep", "kep", "KEP-SVGP"),
        ("msp", "temperature", "Temperature scaling"),
        ("kep", "temperature", "KEP-SVGP + Temperature scaling"),
        ("kep", "kep+kfllla", "KEP-SVGP + KFLLLA"),
        ("kep", "kep+ensemble", "KEP-SVGP ensemble"),
        ("msp", "ensemble", "Deep ensemble"),
        ("msp", "something_new", "something_new"),
    ],
)
def test_name_of_a_method_is_the_papers(trained, method, name) -> None:
    assert name_of(trained, method) == name


def test_different_test_sets_are_kept_apart(make_run) -> None:
    found = compared(make_run("a"), make_run("b", labels=LABELS[:40]))

    assert [comparison.title for comparison in found] == ["digits", "digits (2)"]


@pytest.mark.parametrize(
    ("name", "path", "title"),
    [("csv", "/home/me/tickets.csv", "tickets"), ("images", "/home/me/cats.v2", "cats.v2")],
)
def test_own_data_go_by_the_name_of_their_path(make_run, name, path, title) -> None:
    (comparison,) = compared(make_run("run", data={"name": name, "path": path}))

    assert comparison.title == title


def test_own_data_of_equal_labels_are_not_compared(make_run) -> None:
    runs = []
    for seed, contents in enumerate("xxy"):
        data = {"name": "csv", "path": f"/from/{seed}/mine.csv"}
        runs.append(make_run(str(seed), seed=seed, data=data))
        run = RunFolder(runs[-1])
        run.files.write_json("run.json", run.record() | {"splits": {"contents": contents}})

    found = compared(*runs)

    assert [(c.title, models_of(c)) for c in found] == [
        ("mine", [("KEP-SVGP", 2)]),
        ("mine (2)", [("KEP-SVGP", 1)]),
    ]


def test_a_copied_run_is_not_another_seed(make_run) -> None:
    whole, other = make_run("b"), make_run("c", seed=1)
    short = shutil.copytree(whole, whole.parent / "a")
    RunFolder(short).write_history(RunFolder(whole).history()[:3])

    (comparison,) = compared(short, whole, other)

    (model,) = comparison.models
    # that with the longer history
    assert [member.run.path for member in model.members] == [whole, other]
    assert [str(short) in note for note in comparison.notes] == [True]


def test_runs_that_were_not_evaluated_are_told_and_not_shown(make_run) -> None:
    runs = [make_run("a"), make_run("b", seed=1)]
    (runs[1] / "metrics.json").unlink()

    (comparison,) = compared(*runs)

    assert models_of(comparison) == [("KEP-SVGP", 1)]
    assert [run.path for run in comparison.not_evaluated] == [runs[1]]
    with pytest.raises(UserError, match="kepsvgp evaluate"):
        compared(runs[1])


def test_checkpoint_that_was_not_evaluated_is_refused(make_run) -> None:
    with pytest.raises(UserError, match="'last'; it has score"):
        compared(make_run("run"), checkpoint="last")


def test_compare_refuses_an_empty_list() -> None:
    with pytest.raises(UserError, match="at least one evaluated run"):
        compare([])
