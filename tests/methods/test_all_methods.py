"""What every method must do: predict the same however examples are batched, and after a reload."""

from pathlib import Path
from typing import Any

import pytest
import torch
from methods.cases import CLASSES, EXAMPLES, IMAGES, TEXTS, make_batches, make_model
from safetensors.torch import load_file
from torch.testing import assert_close

from kepsvgp.config.plugins import TRAINED, find_method
from kepsvgp.config.sections import DataConfig
from kepsvgp.data import load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder
from kepsvgp.inference.posterior import fit_posterior
from kepsvgp.inference.prediction import Prediction, entropy, predict, predict_batches
from kepsvgp.methods import ensemble, kfllla, mc_dropout, temperature
from kepsvgp.methods.base import Direct
from kepsvgp.methods.post_hoc import FITTED, PostHoc, Trained
from kepsvgp.runs.weights import write_weights

SHAPES = {"images": IMAGES, "texts": TEXTS}
DIGITS = load_benchmark(DataConfig(name="digits"))


def trained(name: str, shape: Any) -> Any:
    model = make_model(shape, name)
    if name == "sngp":
        with torch.no_grad():
            model.head.fit(
                model.features(**x) if isinstance(x, dict) else model.features(x)
                for x, _, _ in make_batches(shape, 10)
            )
    return model


def agreeing(model: Any, shape: Any, seed: int) -> list[Any]:
    """Batches labelled mostly as the model would: what is fitted to them stays from extremes."""
    found = []
    for inputs, labels, index in make_batches(shape, 5, seed=seed):
        own = predict(model, inputs, generator=torch.Generator().manual_seed(0)).predicted
        found.append((inputs, torch.where(index % 3 == 0, labels, own), index))
    return found


def fitted(name: str, shape: Any) -> Any:
    base, _, posthoc = name.rpartition("+")
    if name in TRAINED:
        return Direct(trained(name, shape), num_samples=3)
    model = trained(base or "msp", shape)
    match posthoc:
        case "temperature":
            direct = Direct(model, num_samples=3)
            return temperature.fit(direct, agreeing(model, shape, 1))
        case "mc_dropout":
            return mc_dropout.fit(model, num_samples=3)
        case "kfllla":
            train, val = agreeing(model, shape, 0), agreeing(model, shape, 1)
            return kfllla.fit(model, train, val, num_samples=3)
        case "ensemble":
            members = [Direct(trained(kind, shape), num_samples=3) for kind in ("msp", "kep")]
            return ensemble.Ensemble(tuple(members))
        case "refitted":
            train, val = agreeing(model, shape, 0), agreeing(model, shape, 1)
            fit_posterior(model, train, validation=val)
            return Direct(model, num_samples=3)
    raise AssertionError(name)


METHODS = [
    *TRAINED,
    "temperature",
    "mc_dropout",
    "kfllla",
    "ensemble",
    "kep+temperature",
    "kep+kfllla",
    "kep+mc_dropout",
    "kep+refitted",
]


def whole(method: Any, shape: Any, batch_size: int) -> Prediction:
    return predict_batches(method, make_batches(shape, batch_size), seed=3)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_prediction_does_not_depend_on_the_batch(name: str, shape: Any) -> None:
    method = fitted(name, shape)

    together = whole(method, shape, EXAMPLES)

    assert together.probs.shape == (EXAMPLES, CLASSES)
    assert_close(together.probs.sum(-1), torch.ones(EXAMPLES))
    # probabilities differ from example to example, or the comparison would say nothing
    assert together.probs.std(dim=0).min() > 1e-3
    for batch_size in (1, 7):
        apart = whole(method, shape, batch_size)
        assert_close(apart.probs, together.probs, rtol=1e-4, atol=1e-5)
        assert_close(apart.aleatoric, together.aleatoric, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in TRAINED])
def test_reloaded_method_predicts_the_same(name: str, tmp_path: Path) -> None:
    method, predictor = find_method(name), fitted(name, TEXTS)
    assert isinstance(method, PostHoc)
    write_weights(CheckedFolder(tmp_path), FITTED, method.kept(predictor), {"stamp": "{}"})
    base = name.rpartition("+")[0] or "msp"
    kinds = ("msp", "kep") if method.is_ensemble else (base,)
    direct = tuple(Direct(trained(kind, TEXTS), num_samples=3) for kind in kinds)

    kept = load_file(tmp_path / FITTED)
    again = method.restore(kept, Trained((), DIGITS, "last", None, None, direct))

    assert torch.equal(whole(again, TEXTS, 7).probs, whole(predictor, TEXTS, 7).probs)


# torch itself cannot quantise the bounded maps of SNGP
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", [name for name in TRAINED if name != "sngp"])
def test_quantized_model_predicts_nearly_the_same(name: str, shape: Any) -> None:
    model = trained(name, shape)
    small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)

    found, expected = (whole(Direct(each, 3), shape, EXAMPLES).probs for each in (small, model))

    # eight bits for each of a few maps in a row; another draw or example is far away
    assert 0 < (found - expected).abs().mean() < 0.05


def test_ensemble_is_the_mean_and_its_disagreement_is_epistemic() -> None:
    one, other = (Prediction(p, entropy(p)) for p in torch.eye(2).split(1))

    both = ensemble.average([one, other])

    assert_close(both.probs, torch.tensor([[0.5, 0.5]]))
    # each member is certain, so all of log 2 is disagreement
    assert_close(both.aleatoric, torch.zeros(1))
    assert_close(both.epistemic, torch.tensor([2.0]).log())
    with pytest.raises(UserError, match="at least two members; got 0"):
        ensemble.Ensemble(())
