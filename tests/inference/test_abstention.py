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


def test_abstainer_keeps_its_promise_on_new_data(generator: torch.Generator) -> None:
    test, test_labels = calibrated(50_000, generator)
    broken = 0
    repeats = 100
    for _ in range(repeats):
        rule = Abstainer.fit(*calibrated(300, generator), max_risk=0.15, confidence=0.8)
        answered = ~rule.abstain(test)
        risk = (test.predicted != test_labels)[answered].double().mean().item()
        broken += risk > 0.15
    assert broken <= 0.2 * repeats + 3 * math.sqrt(repeats * 0.2 * 0.8)


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


@pytest.mark.parametrize("max_risk", [0.1, 1e-6])
def test_abstainer_survives_its_file(max_risk, generator: torch.Generator, tmp_path) -> None:
    rule = Abstainer.fit(*calibrated(500, generator), max_risk=max_risk)

    rule.save(tmp_path)

    assert Abstainer.load(tmp_path) == rule


def test_abstainer_refuses_missing_labels_and_other_files(generator, tmp_path) -> None:
    prediction, labels = calibrated(10, generator)
    with pytest.raises(UserError, match="labels must be those of the 10"):
        Abstainer.fit(prediction)
    with pytest.raises(UserError, match="confidence must lie"):
        Abstainer.fit(prediction, labels, 0.1, 1.0)
    write_json(tmp_path / "abstainer.json", {})
    with pytest.raises(UserError, match="must be a saved Abstainer"):
        Abstainer.load(tmp_path)


def test_abstainer_refuses_predictions_of_other_numbers_of_samples(generator, tmp_path) -> None:
    logits = torch.randn(5, 40, 3, generator=generator)
    ten, one = Prediction.from_logits(logits), Prediction.from_logits(logits[:1])
    rule = Abstainer.fit(ten, ten.predicted, max_risk=0.3)
    rule.save(tmp_path)
    rule = Abstainer.load(tmp_path)

    assert not rule.abstain(ten).all()
    with pytest.raises(UserError, match=r"must average 5 samples.*it has 1"):
        rule.abstain(one)
    # whoever made these did not say how
    rule.abstain(Prediction(one.probs, one.aleatoric))


def test_predictions_know_their_samples_through_files_and_parts(generator, tmp_path) -> None:
    prediction = Prediction.from_logits(torch.randn(5, 4, 3, generator=generator))
    prediction.save(tmp_path / "p.safetensors")
    assert Prediction.load(tmp_path / "p.safetensors").num_samples == 5
    assert prediction[:2].num_samples == 5
    assert Prediction.concatenate([prediction[:2], prediction[2:]]).num_samples == 5


def test_abstainer_refuses_a_risk_that_is_no_share(generator: torch.Generator) -> None:
    with pytest.raises(UserError, match=r"max_risk must lie in \(0, 1\); got 5"):
        Abstainer.fit(*calibrated(10, generator), max_risk=5)


def test_rule_is_one_for_the_draws_it_was_fitted_to(generator: torch.Generator, tmp_path) -> None:
    prediction, labels = calibrated(500, generator)
    drawn = replace(prediction, num_samples=10, seed=0)
    Abstainer.fit(drawn, labels).save(tmp_path)
    rule = Abstainer.load(tmp_path)

    assert rule.seed == 0
    rule.abstain(drawn)
    rule.abstain(prediction)
    with pytest.raises(UserError, match=r"drawn with seed 0, .* it has seed 7"):
        rule.abstain(replace(drawn, seed=7))
