import json
import math

import numpy as np
import pytest
import torch
from report.folders import draw, write_run

from kepsvgp.config.sections import RunConfig
from kepsvgp.data.benchmark import Note
from kepsvgp.errors import UserError
from kepsvgp.files import RUN, read_json, write_json
from kepsvgp.inference.prediction import Prediction
from kepsvgp.report.context import benchmark_context, duration
from kepsvgp.report.examples import Source
from kepsvgp.report.models import compare, name_of
from kepsvgp.report.summary import METRICS, accepted_risk, metric_table, verdict

NO_DATA = Source(None, ())


def config(method="kep", seed=0, **sections) -> RunConfig:
    return RunConfig.model_validate({"method": method, "seed": seed, **sections})


def one(prediction: Prediction) -> dict:
    return {"kep": {"test": prediction}}


def test_compare_takes_seeds_of_one_method_together(digits_runs) -> None:
    (comparison,) = compare(digits_runs)

    assert comparison.title == "digits"
    labels = [model.label for model in comparison.models]
    assert labels == ["KEP-SVGP", "MSP", "Temperature scaling"]
    assert [len(model.members) for model in comparison.models] == [2, 2, 2]
    assert [member.run.seed for member in comparison.models[0].members] == [0, 1]


def test_compare_tells_configurations_of_one_method_apart(tmp_path) -> None:
    labels = torch.arange(60) % 10
    runs = [
        write_run(
            tmp_path / f"{rank}-{seed}",
            one(draw(labels, seed=seed)),
            config=config(seed=seed, model={"kep": {"rank": rank}}),
        )
        for rank in (5, 10)
        for seed in (0, 1)
    ]

    (comparison,) = compare(runs)

    assert [(model.label, len(model.members)) for model in comparison.models] == [
        ("KEP-SVGP (rank=5)", 2),
        ("KEP-SVGP (rank=10)", 2),
    ]


def test_compare_looks_away_from_the_settings_of_other_methods(tmp_path) -> None:
    labels = torch.arange(60) % 10
    runs = [
        write_run(
            tmp_path / str(seed),
            one(draw(labels, seed=seed)),
            config=config(seed=seed, model={"svdkl": {"num_features": 16 + seed}}),
        )
        for seed in (0, 1)
    ]

    (comparison,) = compare(runs)

    assert [(model.label, len(model.members)) for model in comparison.models] == [("KEP-SVGP", 2)]


def test_compare_names_variants_by_what_is_unusual_in_them(tmp_path) -> None:
    labels = torch.arange(60) % 10
    changes = (
        {},
        {"model": {"kep": {"rank": 7}}},
        {"model": {"kep": {"merge": "add", "noise": "token"}}},
        {"objective": {"ksvd_weight": 0.1}},
    )
    runs = [
        write_run(tmp_path / str(number), one(draw(labels, seed=number)), config=config(**change))
        for number, change in enumerate(changes)
    ]

    (comparison,) = compare(runs)

    assert [model.label for model in comparison.models] == [
        "KEP-SVGP",
        "KEP-SVGP (rank=7)",
        "KEP-SVGP (merge=add, noise=token)",
        "KEP-SVGP (ksvd_weight=0.1)",
    ]


def test_compare_keeps_different_test_sets_apart(tmp_path) -> None:
    first = write_run(tmp_path / "a", one(draw(torch.arange(50) % 10)))
    second = write_run(tmp_path / "b", one(draw(torch.arange(40) % 10)))

    comparisons = compare([first, second])

    assert [comparison.title for comparison in comparisons] == ["digits", "digits (2)"]


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


def test_metric_table_holds_what_metrics_json_holds(digits_runs) -> None:
    (comparison,) = compare(digits_runs)

    table = metric_table(comparison, "test", METRICS)

    stored = [json.loads((run / "metrics.json").read_text())["score"] for run in digits_runs]
    kep = [metrics["kep"]["test"] for metrics in stored if "kep" in metrics]
    for metric, cell in zip(table.metrics, table.rows[0].cells, strict=True):
        expected = [values[metric.key] for values in kep]
        assert list(cell.values) == expected
        assert cell.mean == np.mean(expected)
        assert cell.spread == metric.text(float(np.std(expected, ddof=1)))


def test_metric_table_marks_the_best_of_each_direction(digits_runs) -> None:
    (comparison,) = compare(digits_runs)

    table = metric_table(comparison, "test", METRICS)

    for column, metric in enumerate(table.metrics):
        means = [row.cells[column].mean for row in table.rows]
        best = max(means) if metric.better == "high" else min(means)
        expected = [metric.text(m) == metric.text(best) for m in means]
        assert [row.cells[column].best for row in table.rows] == expected


def test_metric_table_leaves_what_is_missing_or_not_finite_unmarked(tmp_path) -> None:
    labels = torch.arange(30) % 10
    perfect = torch.nn.functional.one_hot(labels, 10) * 0.9 + 0.01
    sure = Prediction(perfect, torch.zeros(30), targets=labels, index=torch.arange(30))
    runs = [
        write_run(tmp_path / "perfect", {"kep": {"test": sure}}),
        write_run(tmp_path / "other", {"msp": {"test": draw(labels)}}, config=config("msp")),
    ]

    (comparison,) = compare(runs)
    auroc = metric_table(comparison, "test", [m for m in METRICS if m.key == "auroc"])

    assert math.isnan(auroc.rows[0].cells[0].values[0])
    assert auroc.rows[0].cells[0].text == "not finite"
    assert not any(row.cells[0].best for row in auroc.rows)


def calibrated(num: int, seed: int, scale: float = 1.0) -> Prediction:
    """Predictions whose top probability is right as often as it says, then sharpened."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(num, 4, generator=generator).mul(3).exp()
    probs = probs / probs.sum(1, keepdim=True)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    sharp = probs**scale / (probs**scale).sum(1, keepdim=True)
    return Prediction(sharp, torch.zeros(num), targets=labels, index=torch.arange(num))


@pytest.mark.parametrize(
    ("scale", "state", "words"),
    [
        (1.0, "calibrated", "calibrated"),
        (4.0, "off", "over-confident"),
        (0.3, "off", "under-confident"),
    ],
)
def test_verdict_tells_calibrated_from_sharpened(tmp_path, scale, state, words) -> None:
    run = write_run(tmp_path / "run", one(calibrated(2000, 3, scale)), classes="abcd")

    (comparison,) = compare([run])
    found = verdict(comparison.models[0])

    assert found is not None
    assert (found.calibration, found.words) == (state, words)


def test_few_examples_cannot_tell_that_a_model_is_calibrated(tmp_path) -> None:
    few = write_run(tmp_path / "few", one(calibrated(4, 3)), classes="abcd")
    many = write_run(tmp_path / "many", one(calibrated(2000, 3)), classes="abcd")

    found = [benchmark_context(c, NO_DATA) for path in (few, many) for c in compare([path])]

    told = [(context.cards[0].facts[1].value, context.cards[0].facts[1].state) for context in found]
    assert told == [("too few to tell", ""), ("calibrated", "good")]
    assert "so few test examples cannot tell" in found[0].lead
    assert "Its probabilities are calibrated: no further" in found[1].lead


def test_few_examples_can_tell_that_a_model_is_off(tmp_path) -> None:
    wrong = Prediction(
        torch.tensor([[0.97, 0.01, 0.01, 0.01]] * 6),
        torch.zeros(6),
        targets=torch.ones(6, dtype=torch.long),
        index=torch.arange(6),
    )
    run = write_run(tmp_path / "run", one(wrong), classes="abcd")

    (comparison,) = compare([run])

    found = verdict(comparison.models[0])
    assert found is not None
    assert found.words == "over-confident"


def test_corruptions_are_spoken_of_only_where_a_model_saw_some(tmp_path) -> None:
    labels = torch.arange(40) % 10
    note = Note("corrupted images are generated, not the official arrays", "shift")
    splits = {"test": draw(labels)}
    plain = write_run(tmp_path / "plain", {"kep": splits}, notes=[note._asdict(), "smaller"])
    shifted = {"kep": splits | {"shift/fog/5": draw(labels)}}
    seen = write_run(tmp_path / "seen", shifted, notes=[note._asdict(), "smaller"])

    for run, is_told in ((plain, False), (seen, True)):
        (comparison,) = compare([run])
        notes = benchmark_context(comparison, Source(None, (note,))).notes
        assert (note.text in notes) == is_told
        assert "smaller" in notes


def test_a_copied_run_is_not_another_seed(tmp_path) -> None:
    labels = torch.arange(40) % 10
    splits = one(draw(labels))
    short = write_run(tmp_path / "a" / "run", splits, epochs=3)
    whole = write_run(tmp_path / "b" / "run", splits)
    other = write_run(tmp_path / "c", splits, config=config(seed=1))
    for folder, name in ((short, "x"), (whole, "x"), (other, "y")):
        write_json(folder / "run.json", read_json(folder / "run.json") | {RUN: name})

    (comparison,) = compare([short, whole, other])

    (model,) = comparison.models
    # that with the longer history
    assert [member.run.folder for member in model.members] == [whole, other]
    (told,) = [n for n in benchmark_context(comparison, NO_DATA).notes if "same run" in n]
    assert told.startswith(f"{short} is left out")


@pytest.mark.parametrize(
    ("name", "path", "title"),
    [("csv", "/home/me/tickets.csv", "tickets"), ("images", "/home/me/cats.v2", "cats.v2")],
)
def test_own_data_go_by_the_name_of_their_path(tmp_path, name, path, title) -> None:
    labels = torch.arange(40) % 10
    data = {"name": name, "path": path}
    run = write_run(tmp_path / "run", one(draw(labels)), config=config(data=data))

    (comparison,) = compare([run])

    assert benchmark_context(comparison, NO_DATA).title == title
    assert comparison.benchmark == name


def test_own_data_of_equal_labels_are_not_compared(tmp_path) -> None:
    labels = torch.arange(40) % 10
    runs = []
    for seed, contents in ((0, "x"), (1, "x"), (2, "y")):
        data = {"name": "csv", "path": f"/from/{seed}/mine.csv"}
        run = write_run(
            tmp_path / str(seed), one(draw(labels)), config=config(seed=seed, data=data)
        )
        record = read_json(run / "run.json")
        write_json(run / "run.json", record | {"splits": {"contents": contents}})
        runs.append(run)

    found = compare(runs)

    assert [(c.title, [len(m.members) for m in c.models]) for c in found] == [
        ("mine", [2]),
        ("mine (2)", [1]),
    ]


def test_verdict_coverage_is_the_share_answerable_at_five_percent(digits_runs) -> None:
    (comparison,) = compare(digits_runs)
    model = comparison.models[1]
    shares = []
    for member in model.members:
        test = member.test
        best = 0.0
        for threshold in test.confidence:
            answered = test.confidence >= threshold
            if (~test.correct[answered]).mean() <= 0.05:
                best = max(best, answered.mean())
        shares.append(best)

    found = verdict(model)

    assert found is not None
    assert found.coverage == pytest.approx(np.mean(shares))


@pytest.mark.parametrize(("skill", "risk"), [(2.0, 0.05), (40.0, 0.01)])
def test_cards_speak_of_a_risk_that_is_not_free(tmp_path, skill, risk) -> None:
    labels = torch.arange(500) % 10
    strong = write_run(tmp_path / "strong", one(draw(labels, skill=80.0)))
    other = {"msp": {"test": draw(labels, skill=skill)}}
    weaker = write_run(tmp_path / "weaker", other, config=config("msp"))

    (comparison,) = compare([strong, weaker])

    errors = [1 - member.test.correct.mean() for member in comparison.members]
    assert accepted_risk(comparison) == risk
    assert (max(errors) <= 0.05) == (risk == 0.01)
    card = benchmark_context(comparison, NO_DATA).cards[1]
    assert f"{100 * risk:.0f}%" in card.coverage_says


def test_context_says_what_is_missing_and_unequal(tmp_path) -> None:
    labels = torch.arange(40) % 10
    runs = [
        write_run(tmp_path / "a", one(draw(labels)), config=config(train={"epochs": 3})),
        write_run(
            tmp_path / "b",
            {"msp": {"test": draw(labels), "ood/svhn": draw(-torch.ones(9, dtype=torch.long))}},
            config=config("msp", train={"epochs": 5}),
            notes=["Trained on 5% of the data."],
        ),
        write_run(
            tmp_path / "c",
            {"msp": {"test": draw(labels)}},
            config=config("msp", seed=1, train={"epochs": 5}),
        ),
    ]

    (comparison,) = compare(runs)
    notes = " ".join(benchmark_context(comparison, NO_DATA).notes)

    assert "KEP-SVGP 1 seed, MSP 2 seeds" in notes
    assert "KEP-SVGP 3, MSP 5" in notes
    assert "Trained on 5% of the data." in notes
    # a seed of MSP has it, the other has not
    assert "KEP-SVGP, MSP were not evaluated on: svhn" in notes
    assert "No shifted data were evaluated." in notes


def test_context_says_which_runs_were_interrupted(tmp_path) -> None:
    labels = torch.arange(40) % 10
    second = {"svdkl": {"epochs": 2}}
    msp = {"msp": {"test": draw(labels)}}
    svdkl = {"svdkl": {"test": draw(labels)}}
    runs = [
        write_run(tmp_path / "whole", msp, config=config("msp")),
        write_run(tmp_path / "short", msp, config=config("msp", seed=1), epochs=4),
        # whole, as the second step has its own number of epochs
        write_run(tmp_path / "two", svdkl, config=config("svdkl", model=second), epochs=2),
    ]

    (comparison,) = compare(runs)
    notes = benchmark_context(comparison, NO_DATA).notes

    assert [n for n in notes if "stopped" in n] == [
        "The training of short stopped after 4 of 10 epochs."
    ]


def test_context_leaves_out_a_run_that_diverged_and_says_so(tmp_path) -> None:
    labels = torch.arange(40) % 10
    run = write_run(tmp_path / "a", one(draw(labels)))
    broken = draw(labels)
    Prediction(broken.probs * math.nan, broken.aleatoric, targets=labels, index=broken.index).save(
        run / "predictions/score/kep/test.safetensors"
    )

    (comparison,) = compare([run])
    context = benchmark_context(comparison, NO_DATA)

    assert context.cards[0].coverage is None
    assert any("not finite" in note for note in context.notes)


def test_context_lists_other_checkpoints(tmp_path) -> None:
    labels = torch.arange(40) % 10
    run = write_run(tmp_path / "a", one(draw(labels)))
    path = run / "metrics.json"
    stored = read_json(path)
    stored["last"] = {"kep": {"test": {"accuracy": 0.5, "nll": 2.0}}}
    write_json(path, stored)

    (comparison,) = compare([run])
    table = benchmark_context(comparison, NO_DATA).checkpoints

    assert table is not None
    assert ("last", "50.00%") in [row.cells[:2] for row in table.rows]


def test_context_counts_the_models_of_an_ensemble(tmp_path) -> None:
    splits = {"test": draw(torch.arange(40) % 10)}
    run = write_run(tmp_path / "a", {"msp": splits, "ensemble": splits}, config=config("msp"))
    (comparison,) = compare([run])
    _, unknown = benchmark_context(comparison, NO_DATA).cost.rows
    write_json(run / "methods/score/ensemble/ensemble.json", {"members": ["a", "b", "c"]})
    single, together = benchmark_context(comparison, NO_DATA).cost.rows

    assert single.cells == ("35.0 s", "250 ms", "123,456")
    assert together.cells == ("35.0 s × 3 models", "250 ms", "123,456 × 3 models")
    assert unknown.cells == ("35.0 s per model", "250 ms", "123,456 per model")


def test_compare_refuses_an_empty_list() -> None:
    with pytest.raises(UserError, match="at least one evaluated run"):
        compare([])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0312, "31 ms"), (61.0, "61.0 s"), (600.0, "10.0 min"), (9000.0, "2.5 h")],
)
def test_duration_is_said_in_fitting_units(seconds, text) -> None:
    assert duration(seconds) == text
