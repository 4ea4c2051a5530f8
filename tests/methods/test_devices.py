"""Every model, method and path stays on one device: `meta`, which every machine has.

Tensors of `meta` have no values, and torch lets some operations mix them with others, so every
operation is looked at.
"""

from typing import Any

import pytest
import torch
from methods.cases import CLASSES, CONFIG, IMAGES, TEXTS, make_batches, make_model
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kepsvgp.attention.base import fixed_draws
from kepsvgp.config.plugins import TRAINED
from kepsvgp.config.sections import DataConfig, ModelConfig
from kepsvgp.conversion import convert
from kepsvgp.data import load_benchmark
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.inference.calls import call, sampled_logits, to_device
from kepsvgp.inference.novelty import fit_novelty
from kepsvgp.inference.pooled import pooled
from kepsvgp.inference.posterior import find_spread, fit_posterior
from kepsvgp.inference.prediction import Direct, Prediction, predict, predict_batches
from kepsvgp.methods import kfllla, mc_dropout, temperature
from kepsvgp.methods.ensemble import Ensemble
from kepsvgp.methods.matched_noise import noise_scales
from kepsvgp.methods.post_hoc import Trained
from kepsvgp.models import Classifier, build_model
from kepsvgp.ops import noise
from kepsvgp.paper.inspection import inspect_model, measure_activity
from kepsvgp.training.objective import objective

META = torch.device("meta")
DIGITS = DataConfig(train_limit=20, val_limit=10, corruptions="none")
SHAPES = {"images": IMAGES, "texts": TEXTS}
# the layer's ways: each is another path
KEP = {
    **{projection: {"projection": projection} for projection in ("free", "landmark", "dual")},
    **{merge: {"merge": merge} for merge in ("add", "concat", "concat_lowrank")},
    **{f"token {m}": {"noise": "token", "merge": m} for m in ("add", "concat")},
    **{kind: {"ksvd_loss": kind} for kind in ("relative", "residual")},
    "program": {"projection": "landmark", "start": "program", "num_landmarks": "distinct"},
}
PARTS = ("probs", "aleatoric", "novelty", "novelty_p")
MOVES = ("_to_copy", "copy_")
QUESTIONS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.allclose.default)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices; single numbers of a CPU are no tensors.

    A question for a value, which a device would have to be waited for, has no answer on `meta`
    but a given one.
    """

    def __init__(self, answer: int | None = None) -> None:
        super().__init__()
        self.answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        devices = {t.device.type for t in given if t.ndim > 0 or not t.is_cpu}
        assert len(devices) < 2 or func.overloadpacket.__name__ in MOVES, f"{func} mixes {devices}"
        is_asked = func in QUESTIONS and META in {t.device for t in given}
        if is_asked and self.answer is not None:
            return self.answer
        return func(*args, **(kwargs or {}))


class WithoutFloat64(OneDevice):
    """Makes `meta` a device that has no double precision; what is copied from it is zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        where = (kwargs or {}).get("device")
        if func is torch.ops.aten._to_copy.default and where == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        found = super().__torch_dispatch__(func, types, args, kwargs)
        made = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.device == META]
        assert all(t.dtype != torch.float64 for t in made), f"{func} makes float64"
        return found


def made(shape: Any, method: str, **kep: Any) -> tuple[Classifier, Any, Tensor]:
    values = CONFIG.model_dump() | {"kep": {"rank": 3, **kep}}
    model = build_model(ModelConfig(**values), shape, CLASSES, method).to(META)
    inputs, labels, _ = next(make_batches(shape, 5))
    return model, to_device(inputs, META), labels.to(META)


def train_and_predict(
    model: Classifier, inputs: Any, labels: Tensor, answer: int | None = None
) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    random = torch.Generator().manual_seed(0)
    with OneDevice(answer):
        output = call(model.train(), inputs)
        terms = objective(output, labels, model, num_train=7, ksvd_weight=1.0, kl_weight=1.0)
        terms.total.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            found = [
                call(model, inputs),
                sampled_logits(model, inputs, 3, random),
                mc_dropout.fit(model)._sampled_logits(inputs, noise.draw_seeds(3), random),
            ]
            with fixed_draws(model, 3, generator=random):
                found.append(call(model, inputs, num_samples=3))
    assert {each.device for each in found} == {META}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", TRAINED)
def test_method_stays_on_its_device(method: str, shape: Any) -> None:
    train_and_predict(*made(shape, method))


@pytest.mark.parametrize("kep", KEP.values(), ids=KEP)
def test_layer_stays_on_its_device_in_each_of_its_ways(kep: dict[str, Any]) -> None:
    train_and_predict(*made(IMAGES, "kep", **kep))
    if "concat" not in kep.get("merge", ""):
        train_and_predict(*made(TEXTS, "kep", **kep))


class Encoded(nn.Module):
    """A classifier that knows nothing of this library."""

    def __init__(self, *, is_pooled: bool) -> None:
        super().__init__()
        self.is_pooled = is_pooled
        layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.encoder(x)
        return self.head(encoded.mean(1) if self.is_pooled else encoded[:, 0])


@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.parametrize("mean", ["attention", "zero"])
def test_converted_model_stays_on_its_device(mean: Any, is_pooled: bool) -> None:
    model = convert(Encoded(is_pooled=is_pooled), mean=mean).to(META)
    batch = (torch.zeros(29, 7, 12), torch.zeros(29, dtype=torch.int64))
    inputs, labels = (t.to(META) for t in batch)

    with OneDevice():
        output = call(model.train(), inputs)
        terms = objective(output, labels, model, num_train=7, ksvd_weight=1.0, kl_weight=1.0)
        terms.total.backward()
    # whether what follows reads the first token alone is asked of the first sample
    with OneDevice(answer=1):
        fit_posterior(model, [batch], prior_precision=2.0, device=META)
        find_spread(model, [batch], device=META)
        fit_novelty(model, [batch], calibration=[batch[0]], num_samples=2, device=META)
        sampled = predict(model, inputs, num_samples=3)
        exact = predict(model, inputs, method="linear")

    found = [getattr(each, name) for each in (sampled, exact) for name in PARTS]
    assert {tensor.device for tensor in found} == {META}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_linear_predictions_and_ensembles_stay_on_their_device(shape: Any) -> None:
    model, inputs, _ = made(shape, "kep")

    # predictions are checked to be finite
    with OneDevice(answer=1):
        exact = predict(model, inputs, method="linear")
        together = Ensemble((Direct(model), Direct(model))).predict(inputs)

    assert {exact.probs.device, together.probs.device} == {META}


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("mode", [OneDevice, WithoutFloat64])
def test_abstention_stays_on_the_device_of_the_prediction(
    monkeypatch: pytest.MonkeyPatch, mode: type[OneDevice], limit: float | None
) -> None:
    kinds = ("meta",) if mode is WithoutFloat64 else ()
    monkeypatch.setattr("kepsvgp.maths.ksvd.WITHOUT_FLOAT64", kinds)
    part = torch.zeros(23, device=META)
    prediction = Prediction(torch.zeros(23, CLASSES, device=META), part, novelty=part)

    # a rule is fitted on the CPU
    with WithoutFloat64():
        rule = Abstainer.fit(prediction, torch.zeros(23, dtype=torch.int64), max_false_alarm=limit)
    with mode():
        withheld = rule.abstain(prediction)

    assert withheld.device == (torch.device("cpu") if kinds else META)


@pytest.mark.parametrize("mode", [OneDevice, WithoutFloat64])
def test_what_is_fitted_to_a_model_follows_it(
    monkeypatch: pytest.MonkeyPatch, mode: type[OneDevice]
) -> None:
    kinds = ("meta",) if mode is WithoutFloat64 else ()
    monkeypatch.setattr("kepsvgp.maths.ksvd.WITHOUT_FLOAT64", kinds)
    model, inputs, _ = made(IMAGES, "msp")
    classes, width = torch.eye(CLASSES), torch.eye(CONFIG.dim)
    parts = (classes[0], classes, width[0], width, classes[0], classes)
    kept = dict(zip(kfllla.Curvature._fields, parts, strict=True))
    kept["prior_precision"] = torch.tensor(2.0, dtype=torch.float64)
    benchmark = load_benchmark(DIGITS)
    trained = Trained((), benchmark, "last", META, None, direct=(Direct(model),))

    # predictions are checked to be finite
    with mode(answer=1):
        laplace = kfllla.LastLayerLaplace().restore(kept, trained).predict(inputs)
        of_model = Prediction.from_logits(sampled_logits(model, inputs, 1))
        scaled = temperature.scale(of_model, 2.0)

    assert {laplace.probs.device, scaled.probs.device} == {META}


def test_mix_of_devices_is_noticed() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.ones(2, 2) @ torch.ones(2, 2, device=META)


@pytest.mark.parametrize("mode", [OneDevice, WithoutFloat64])
def test_last_passes_stay_on_the_device_of_the_model(
    monkeypatch: pytest.MonkeyPatch, mode: type[OneDevice]
) -> None:
    kinds = ("meta",) if mode is WithoutFloat64 else ()
    monkeypatch.setattr("kepsvgp.maths.ksvd.WITHOUT_FLOAT64", kinds)
    model, _, _ = made(IMAGES, "kep")
    network, inputs, _ = made(IMAGES, "sngp")

    with mode(answer=1):
        fit_posterior(model, make_batches(IMAGES, 5), prior_precision=2.0, device=META)
        fit_novelty(model, make_batches(IMAGES, 5), num_samples=2, device=META)
        scales = noise_scales(model, make_batches(IMAGES, 5))
        network.head.fit([pooled(network, inputs)[0]])

    state = {**model.state_dict(), **network.state_dict(), **scales}
    assert {tensor.device for tensor in state.values()} == {META}
    assert "novelty.scale" in " ".join(state)


def test_activity_is_measured_on_the_device_of_the_model() -> None:
    benchmark = load_benchmark(DIGITS)
    model, _, _ = made(IMAGES, "kep")

    with OneDevice(answer=1):
        found = measure_activity(model, benchmark)

    assert list(found) == ["blocks.1.attention"]


@pytest.fixture
def accelerator() -> torch.device:
    if not torch.accelerator.is_available():
        pytest.skip("this machine has no accelerator")
    return torch.device(torch.accelerator.current_accelerator())


@pytest.mark.parametrize("method", TRAINED)
def test_predictions_and_inspection_are_those_of_a_cpu(accelerator, method: str) -> None:
    model = make_model(IMAGES, method)
    batches = list(make_batches(IMAGES, 10))

    def asked(device: torch.device) -> tuple[Tensor, Any]:
        found = predict_batches(model.to(device), batches, num_samples=3, device=device)
        return found.probs, inspect_model(model, batches, split="test").layers

    (probs, layers), (expected, expected_layers) = asked(accelerator), asked(torch.device("cpu"))

    assert_close(probs, expected, rtol=0, atol=1e-4)
    for layer, other in zip(layers, expected_layers, strict=True):
        assert_close(layer.singular_values, other.singular_values, rtol=0, atol=1e-3)


def test_random_state_of_every_device_is_kept(accelerator) -> None:
    def drawn() -> Tensor:
        return torch.rand(3, device=accelerator)

    torch.manual_seed(0)
    expected = drawn()
    torch.manual_seed(0)
    with noise.kept_random_state():
        torch.manual_seed(1)
        drawn()

    assert_close(drawn(), expected)
