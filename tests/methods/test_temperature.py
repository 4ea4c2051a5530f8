import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from methods.cases import TEXTS, make_batches, make_model
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, entropy, predict_batches
from kepsvgp.methods import temperature
from kepsvgp.methods.base import Direct


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(F.nll_loss(probs.double().log(), labels))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    examples, classes = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    seed, scale = draw(st.integers(0, 999)), draw(st.floats(0.0, 40.0))
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(examples, classes, generator=generator)
    return logits.softmax(-1), torch.randint(classes, (examples,), generator=generator)


@pytest.mark.filterwarnings("ignore:the temperature is left at 1")
@given(cases())
def test_validation_nll_never_grows(case: tuple[Tensor, Tensor]) -> None:
    probs, labels = case
    probs = probs.clamp_min(1e-30)
    t = temperature.best_temperature(probs, labels)

    scaled = temperature.scale(Prediction(probs, entropy(probs)), t)

    assert nll(scaled.probs.clamp_min(1e-30), labels) <= nll(probs, labels) + 1e-5


@given(cases(), st.floats(0.01, 100.0))
def test_label_never_changes(case: tuple[Tensor, Tensor], t: float) -> None:
    probs, _ = case
    prediction = Prediction(probs, entropy(probs))

    scaled = temperature.scale(prediction, t)

    assert torch.equal(scaled.predicted, prediction.predicted)
    assert (scaled.epistemic >= 0).all()
    assert (scaled.aleatoric <= scaled.entropy + 1e-6).all()


def test_best_temperature_beats_a_grid(generator: torch.Generator) -> None:
    logits = 2 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (50,), generator=generator)
    found = temperature.best_temperature(logits.softmax(-1), labels)

    best = nll((logits / found).softmax(-1), labels)
    grid = [nll((logits / t).softmax(-1), labels) for t in torch.logspace(-1, 2, 300).tolist()]
    assert best <= min(grid) + 1e-9


def test_scaling_a_softmax_model_is_dividing_its_logits() -> None:
    model = make_model(TEXTS)
    inputs, _, _ = next(make_batches(TEXTS, 23))
    method = temperature.TemperatureScaling(Direct(model), 1.7)

    with torch.no_grad():
        expected = (model(**inputs) / 1.7).softmax(-1)

    assert_close(method.predict(inputs).probs, expected)


def test_fit_uses_the_averaged_prediction_of_a_stochastic_model() -> None:
    base = Direct(make_model(TEXTS, "kep"), num_samples=3)
    method = temperature.fit(base, make_batches(TEXTS, 5), seed=2)

    averaged = predict_batches(base, make_batches(TEXTS, 5), seed=2)
    assert averaged.targets is not None
    expected = temperature.best_temperature(averaged.probs, averaged.targets)
    assert method.temperature == expected
    scaled = temperature.scale(averaged, expected)
    assert nll(scaled.probs, averaged.targets) < nll(averaged.probs, averaged.targets)


def test_temperature_of_a_set_without_errors_is_one(generator: torch.Generator) -> None:
    """There is no best one: the sharper, the better."""
    probs = (3 * torch.randn(20, 3, generator=generator)).softmax(-1)
    with pytest.warns(UserWarning, match="no error"):
        assert temperature.best_temperature(probs, probs.argmax(-1)) == 1.0
    with pytest.raises(UserError, match="validation examples"):
        temperature.best_temperature(probs[:0], probs[:0].argmax(-1))
