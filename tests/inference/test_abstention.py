import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import Abstainer, Prediction
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder, write_json
from kepsvgp.inference.prediction import entropy
from kepsvgp.runs.weights import write_weights


def calibrated(num_examples: int, generator: torch.Generator) -> tuple[Prediction, Tensor]:
    """Two classes whose labels follow the predicted probabilities."""
    p = torch.rand(num_examples, generator=generator, dtype=torch.float64)
    probs = torch.stack([1 - p, p], dim=1)
    labels = (torch.rand(num_examples, generator=generator, dtype=torch.float64) < p).long()
    return Prediction(probs, entropy(probs)), labels


def with_novelty(num_examples: int, generator: torch.Generator) -> tuple[Prediction, Tensor]:
    """Errors grow with novelty, so that what is foreign matters to the risk."""
    prediction, labels = calibrated(num_examples, generator)
    novelty = torch.randn(num_examples, generator=generator, dtype=torch.float64).exp()
    lost = torch.rand(num_examples, generator=generator, dtype=torch.float64) < novelty / 20
    return replace(prediction, novelty=novelty), torch.where(lost, 1 - labels, labels)


@pytest.mark.parametrize("max_false_alarm", [None, 0.05, 0.2])
def test_both_promises_are_kept_on_new_data(
    max_false_alarm: float | None, generator: torch.Generator
) -> None:
    test, test_labels = with_novelty(20_000, generator)
    wrong = test.predicted != test_labels
    repeats, broken, alarms = 500, 0, []
    for _ in range(repeats):
        rule = Abstainer.fit(
            *with_novelty(200, generator), max_risk=0.15, confidence=0.8,
            max_false_alarm=max_false_alarm,
        )  # fmt: skip
        answered = ~rule.abstain(test)
        broken += int(answered.any() and wrong[answered].double().mean() > 0.15)
        alarms.append(rule.foreign(test).double().mean())

    # three standard errors of each mean
    assert broken <= 0.2 * repeats + 3 * math.sqrt(repeats * 0.2 * 0.8)
    found, allowed = torch.stack(alarms), max_false_alarm or 0.0
    assert abs(found.mean() - allowed) <= 3 * found.std() / math.sqrt(repeats) + 1 / 201


def test_abstainer_answers_the_confident_examples(generator: torch.Generator) -> None:
    prediction, labels = calibrated(2_000, generator)

    rule = Abstainer.fit(prediction, labels, max_risk=0.1)
    answered = ~rule.abstain(prediction)

    assert 0 < rule.coverage < 1
    assert_close(answered.double().mean().item(), rule.coverage)
    assert prediction.confidence[answered].min() > prediction.confidence[~answered].max()


def test_abstainer_withholds_all_where_nothing_keeps_the_promise() -> None:
    probs = torch.tensor([[0.1, 0.9]] * 50)
    rule = Abstainer.fit(Prediction(probs, entropy(probs)), torch.zeros(50, dtype=torch.long))

    assert rule.abstain(Prediction(probs, entropy(probs))).all()
    assert rule.threshold == math.inf


def test_rule_says_the_smallest_risk_that_can_be_kept(generator: torch.Generator) -> None:
    prediction, labels = calibrated(200, generator)
    least = Abstainer.fit(prediction, labels, max_risk=1e-4).smallest_risk
    assert least is not None

    above, below = (Abstainer.fit(prediction, labels, least * f) for f in (1 + 1e-9, 1 - 1e-9))

    assert above.threshold < math.inf == below.threshold
    assert f"{least:.1%}" in below.words


def test_reasons_tell_foreign_from_unsure(generator: torch.Generator) -> None:
    prediction, labels = with_novelty(500, generator)
    rule = Abstainer.fit(prediction, labels, max_risk=0.3, max_false_alarm=0.1)
    alone = Abstainer.fit(prediction, max_risk=None, max_false_alarm=0.1)

    foreign, withheld = rule.foreign(prediction), rule.abstain(prediction)
    assert foreign.sum() == 500 - math.ceil(0.9 * 501)
    assert torch.equal(alone.abstain(prediction), foreign)
    names = {(True, True): "foreign", (False, True): "unsure", (False, False): ""}
    pairs = zip(foreign.tolist(), withheld.tolist(), strict=True)
    assert rule.reasons(prediction) == [names[pair] for pair in pairs]
    assert len(set(rule.reasons(prediction))) == 3


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"novelty": None}, {}, "must have its novelty"),
        ({}, {"max_false_alarm": 0.001}, "at least 999 calibration examples; got 40"),
        ({}, {"max_false_alarm": 1.0}, r"max_false_alarm must lie in \(0, 1\); got 1.0"),
        ({"seed": "unknown"}, {}, "must say how its samples were drawn"),
        ({"num_samples": 2}, {}, "must say how its samples were drawn"),
    ],
)
def test_rule_refuses_what_it_cannot_promise(change, options, message, generator) -> None:
    prediction, labels = with_novelty(40, generator)
    with pytest.raises(UserError, match=message):
        Abstainer.fit(replace(prediction, **change), labels, **{"max_false_alarm": 0.1} | options)


def test_rule_of_other_weights_is_refused(generator: torch.Generator, tmp_path) -> None:
    rule = Abstainer.fit(*calibrated(500, generator))
    rule.save(tmp_path)
    write_weights(CheckedFolder(tmp_path), "model.safetensors", {"w": torch.zeros(2)}, {})
    assert Abstainer.load(tmp_path) == rule

    rule.save(tmp_path)
    assert Abstainer.load(tmp_path) == rule
    write_weights(CheckedFolder(tmp_path), "model.safetensors", {"w": torch.ones(2)}, {})

    with pytest.raises(UserError, match="fitted to other weights"):
        Abstainer.load(tmp_path)


@pytest.mark.parametrize("max_false_alarm", [None, 0.1])
@pytest.mark.parametrize("max_risk", [0.1, 1e-6, None])
def test_abstainer_survives_its_file(max_risk, max_false_alarm, generator, tmp_path) -> None:
    prediction, labels = with_novelty(500, generator)
    drawn = replace(prediction, num_samples=10, seed=3, average="logits")
    rule = Abstainer.fit(drawn, labels, max_risk, max_false_alarm=max_false_alarm)

    rule.save(tmp_path)

    found = Abstainer.load(tmp_path)
    assert str(found) == str(rule)
    assert torch.equal(found.abstain(drawn), rule.abstain(drawn))


def test_abstainer_refuses_missing_labels_and_other_files(generator, tmp_path) -> None:
    prediction, labels = calibrated(10, generator)
    with pytest.raises(UserError, match="labels must be those of the 10"):
        Abstainer.fit(prediction)
    with pytest.raises(UserError, match="confidence must lie"):
        Abstainer.fit(prediction, labels, 0.1, 1.0)
    write_json(tmp_path / "abstainer.json", {})
    with pytest.raises(UserError, match="must be a saved Abstainer"):
        Abstainer.load(tmp_path)


@pytest.mark.parametrize("seed", [-7, 0, None, "unknown"])
def test_predictions_know_their_samples_through_files_and_parts(seed, generator, tmp_path) -> None:
    logits = torch.randn(5, 4, 3, generator=generator)
    prediction = replace(Prediction.from_logits(logits, "logits"), seed=seed)
    prediction.save(tmp_path / "p.safetensors")
    again = Prediction.load(tmp_path / "p.safetensors")
    for found in (again, prediction[:2], Prediction.concatenate([prediction[:2], prediction[2:]])):
        assert (found.num_samples, found.seed, found.average) == (5, seed, "logits")


def test_abstainer_refuses_a_risk_that_is_no_share(generator: torch.Generator) -> None:
    with pytest.raises(UserError, match=r"max_risk must lie in \(0, 1\); got 5"):
        Abstainer.fit(*calibrated(10, generator), max_risk=5)


def test_rule_without_draws_refuses_unknown_ones(generator: torch.Generator) -> None:
    prediction, labels = calibrated(50, generator)
    for sure in (prediction, replace(prediction, num_samples=1)):
        rule = Abstainer.fit(sure, labels, max_risk=0.5)
        rule.abstain(sure)
        with pytest.raises(UserError, match="must say how its samples were drawn"):
            rule.abstain(replace(sure, seed="unknown"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, r"be drawn with seed 0.* it has 7"),
        ({"seed": None}, r"be drawn with seed 0.* nobody knows"),
        ({"seed": "unknown"}, r"be drawn with seed 0.* nobody knows"),
        ({"num_samples": 1}, r"average 10 samples.* it has 1"),
        ({"num_samples": None, "seed": None}, r"average 10 samples.* nobody knows"),
        ({"average": "logits"}, r"with average 'probs'.* it has logits"),
    ],
)
def test_rule_is_one_for_the_draws_it_was_fitted_to(change, message, generator, tmp_path) -> None:
    prediction, labels = with_novelty(500, generator)
    drawn = replace(prediction, num_samples=10, seed=0, average="probs")
    Abstainer.fit(drawn, labels, max_false_alarm=0.1).save(tmp_path)
    rule = Abstainer.load(tmp_path)

    rule.abstain(drawn)
    for ask in (rule.abstain, rule.foreign):
        with pytest.raises(UserError, match=message):
            ask(replace(drawn, **change))
