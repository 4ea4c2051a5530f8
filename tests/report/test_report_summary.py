import json
import math

import numpy as np
import pytest
import torch
from report.folders import compared, draw, write_run

from kepsvgp.config.sections import RunConfig
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics.registry import METRICS, OF_A_SET
from kepsvgp.report.models import Model
from kepsvgp.report.summary import accepted_risk, leaders, metric_table, verdict


def model_of(folder, *predictions: Prediction, method: str = "kep") -> Model:
    """A model with a seed for each prediction of the test set."""
    paths = [
        write_run(
            folder / f"{method}-{seed}",
            {method: {"test": prediction}},
            config=RunConfig.model_validate({"method": method, "seed": seed}),
        )
        for seed, prediction in enumerate(predictions)
    ]
    (comparison,) = compared(*paths)
    (model,) = comparison.models
    return model


def test_metric_table_holds_what_metrics_json_holds_and_marks_the_best(digits_runs) -> None:
    (comparison,) = compared(*digits_runs)

    table = metric_table(comparison, "test", OF_A_SET)

    stored = [json.loads((run / "metrics.json").read_text())["score"] for run in digits_runs]
    kep = [metrics["kep"]["test"] for metrics in stored if "kep" in metrics]
    for column, metric in enumerate(table.metrics):
        cells = [row[column] for row in table.rows.values()]
        expected = [values[metric.name] for values in kep]
        assert list(cells[0].values) == expected
        assert cells[0].spread == metric.text(float(np.std(expected, ddof=1)))
        means = [np.mean(cell.values) for cell in cells]
        best = metric.text(max(means) if metric.is_higher_better else min(means))
        assert [cell.best for cell in cells] == [cell.text == best for cell in cells]


def test_metric_table_leaves_what_is_not_finite_unmarked(tmp_path) -> None:
    labels = torch.arange(30) % 10
    probs = torch.nn.functional.one_hot(labels, 10) * 0.9 + 0.01
    sure = Prediction(probs, torch.zeros(30), targets=labels, index=torch.arange(30))
    first = write_run(tmp_path / "perfect", {"kep": {"test": sure}})
    splits = {"msp": {"test": draw(labels)}}
    second = write_run(tmp_path / "other", splits, config=RunConfig(method="msp"))

    (comparison,) = compared(first, second)
    auroc = metric_table(comparison, "test", [METRICS["auroc"]])

    (perfect,), (other,) = auroc.rows.values()
    assert math.isnan(perfect.values[0])
    assert perfect.text == "not finite"
    assert not perfect.best
    assert not other.best


def calibrated(num: int, seed: int = 3, scale: float = 1.0) -> Prediction:
    """Predictions whose top probability is right as often as it says, then sharpened."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(num, 4, generator=generator).mul(3).exp()
    probs = probs / probs.sum(1, keepdim=True)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    sharp = probs**scale / (probs**scale).sum(1, keepdim=True)
    return Prediction(sharp, torch.zeros(num), targets=labels, index=torch.arange(num))


def wrong(num: int) -> Prediction:
    """Predictions that are sure and wrong."""
    probs = torch.tensor([[0.97, 0.01, 0.01, 0.01]] * num)
    targets = torch.ones(num, dtype=torch.long)
    return Prediction(probs, torch.zeros(num), targets=targets, index=torch.arange(num))


@pytest.mark.parametrize(
    ("prediction", "state", "words"),
    [
        (calibrated(4000), "calibrated", "calibrated"),
        (calibrated(2000, scale=4.0), "off", "over-confident"),
        (calibrated(2000, scale=0.3), "off", "under-confident"),
        # chance alone explains an ECE of 5 points: nothing could be found
        (calibrated(240), "too few", "too few examples to say"),
        (calibrated(4), "too few", "too few examples to say"),
        # few can tell what is far off
        (wrong(6), "off", "over-confident"),
    ],
)
def test_verdict_on_calibration_needs_enough_examples(tmp_path, prediction, state, words) -> None:
    found = verdict(model_of(tmp_path, prediction))

    assert found is not None
    assert (found.calibration, found.words) == (state, words)


def test_verdict_coverage_is_the_share_answerable_at_five_percent(digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    model = comparison.models[1]
    shares = []
    for test in model.tests:
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
    strong = write_run(tmp_path / "strong", {"kep": {"test": draw(labels, skill=80.0)}})
    other = {"msp": {"test": draw(labels, skill=skill)}}
    weaker = write_run(tmp_path / "weaker", other, config=RunConfig(method="msp"))

    (comparison,) = compared(strong, weaker)

    errors = [1 - test.correct.mean() for model in comparison.models for test in model.tests]
    assert accepted_risk(comparison) == risk
    assert (max(errors) <= 0.05) == (risk == 0.01)


@pytest.mark.parametrize(
    ("skills", "expected"),
    [
        # one seed each: what the test set can show
        ({"kep": [3.0], "msp": [1.0]}, ["KEP-SVGP"]),
        ({"kep": [2.0], "msp": [2.0], "sgpa": [0.5]}, {"KEP-SVGP", "MSP"}),
        # the mean is better, but not more than seeds differ
        ({"kep": [3.5, 0.5], "msp": [1.0, 1.1]}, {"KEP-SVGP", "MSP"}),
        ({"kep": [3.0, 3.1, 3.2], "msp": [1.0, 1.1, 1.2]}, ["KEP-SVGP"]),
    ],
)
def test_leaders_are_all_that_cannot_be_told_apart(tmp_path, skills, expected) -> None:
    labels = torch.arange(400) % 10
    models = [
        model_of(
            tmp_path,
            *(draw(labels, skill=skill, seed=17 * place) for place, skill in enumerate(values)),
            method=method,
        )
        for method, values in skills.items()
    ]

    found = [model.label for model in leaders(models)]

    assert type(expected)(found) == expected
