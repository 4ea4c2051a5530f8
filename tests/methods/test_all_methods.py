"""What every method must do: predict the same however examples are batched, and after a reload."""

from pathlib import Path
from typing import Any

import pytest
import torch
from methods.cases import CLASSES, EXAMPLES, IMAGES, TEXTS, make_batches, make_model
from torch.testing import assert_close

from kepsvgp.config.plugins import TRAINED
from kepsvgp.files import CheckedFolder
from kepsvgp.inference.prediction import Prediction, predict, predict_batches
from kepsvgp.methods import ensemble, kfllla, mc_dropout, temperature
from kepsvgp.methods.base import Direct

SHAPES = {"images": IMAGES, "texts": TEXTS}


def trained(name: str, shape: Any) -> Any:
    model = make_model(shape, name)
    if name == "sngp":
        with torch.no_grad():
            model.head.fit(
                (model.features(**x) if isinstance(x, dict) else model.features(x), None)
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
            return ensemble.fit(members, ["one", "two"])
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


def reloaded(name: str, method: Any, folder: CheckedFolder) -> Any:
    match name.rpartition("+")[2]:
        case "temperature":
            return temperature.load(folder, method.base)
        case "mc_dropout":
            return mc_dropout.load(folder, method.model)
        case "kfllla":
            return kfllla.load(folder, method.model)
        case "ensemble":
            return ensemble.load(folder, method.members)
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in TRAINED])
def test_reloaded_method_predicts_the_same(name: str, tmp_path: Path) -> None:
    method = fitted(name, TEXTS)
    folder = CheckedFolder(tmp_path / name)
    method.save(folder)

    again = whole(reloaded(name, method, folder), TEXTS, 7)

    assert torch.equal(again.probs, whole(method, TEXTS, 7).probs)
    # plain files only: nothing that could run code when it is read
    suffixes = {file.suffix for file in (tmp_path / name).rglob("*")}
    assert suffixes <= {".json", ".safetensors"}
