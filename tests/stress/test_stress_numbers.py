"""Numbers that break things: finite results or a clear error, whatever comes in."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from breaking import CONFIG, LONG, assert_explained, many, run_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from kepsvgp import KEPAttention, Prediction, predict
from kepsvgp.attention import PrimalAttention, SGPAttention, SoftmaxAttention
from kepsvgp.errors import UserError
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.objective import objective

FUZZED = many(60, 10_000)
FUZZ = settings(
    max_examples=FUZZED,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# normal numbers, constants, zeros, tiny and huge ones, one token repeated, one spike
INPUTS = ("normal", "constant", "zero", "tiny", "large", "repeated", "spike", "denormal")


def tokens(kind: str, *shape: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=generator)
    match kind:
        case "constant":
            return torch.full(shape, 3.7)
        case "zero":
            return torch.zeros(shape)
        case "tiny":
            return 1e-20 * x
        case "denormal":
            return 1e-40 * x
        case "large":
            return 1e4 * x
        case "repeated":
            return x[..., :1, :].expand(shape).clone()
        case "spike":
            x[..., 0, 0] = 1e6
    return x


class Classifier(nn.Module):
    """The smallest model around a layer."""

    def __init__(self, layer: nn.Module, dim: int, num_classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(dim, num_classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.layer(x, mask).mean(dim=-2))


def assert_trains_and_predicts(
    layer: nn.Module, x: Tensor, mask: Tensor | None, num_classes: int = 3
) -> None:
    """A step with finite loss and gradients, and a prediction that is a distribution."""
    model = Classifier(layer, x.shape[-1], num_classes)
    labels = torch.arange(len(x)) % num_classes
    output = model.train()(x, mask)
    terms = objective(output, labels, model, num_train=10, ksvd_weight=1.0, kl_weight=1.0)
    assert all(term.isfinite() for term in terms), terms
    terms.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    inputs = {"x": x} if mask is None else {"x": x, "mask": mask}
    prediction = predict(model, inputs, num_samples=2)
    assert prediction.probs.isfinite().all()
    assert torch.allclose(prediction.probs.sum(-1), torch.ones(len(x)), atol=1e-5)
    assert (prediction.epistemic >= 0).all()


def assert_finite_or_refused(model: nn.Module, x: Tensor) -> None:
    """Never a prediction that is no distribution."""
    try:
        prediction = predict(model, x, num_samples=2)
    except UserError:
        return
    assert prediction.probs.isfinite().all()
    assert torch.allclose(prediction.probs.sum(-1), torch.ones(len(x)), atol=1e-5)


@st.composite
def cases(draw):
    """A layer's settings, the shape of its input, what is in it, and a mask."""
    num_heads = draw(st.integers(1, 4))
    num_tokens = draw(st.integers(1, 9))
    projection = draw(st.sampled_from(["landmark", "free", "dual"]))
    ksvd_loss = draw(st.sampled_from(["objective", "residual"])) if projection == "dual" else None
    options = {
        "dim": num_heads * draw(st.integers(1, 5)),
        "num_heads": num_heads,
        # larger than the number of tokens and the width of a head, too
        "rank": draw(st.integers(1, 12)),
        "merge": draw(st.sampled_from(["add", "concat", "concat_lowrank"])),
        "num_tokens": num_tokens,
        "num_landmarks": draw(st.one_of(st.none(), st.integers(1, 20))),
        "projection": projection,
        "noise": draw(st.sampled_from(["joint", "token"])),
        "branches": draw(st.sampled_from(["er", "ee", "rr"])),
        "qk_bias": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.3])),
        "posterior_scale": draw(st.sampled_from([1e-6, 0.1, 10.0])),
    }
    if ksvd_loss:
        options["ksvd_loss"] = ksvd_loss
    return {
        "options": options,
        "batch": draw(st.integers(1, 4)),
        "kind": draw(st.sampled_from(INPUTS)),
        "log_lambda": draw(st.sampled_from([-8.0, -1.0, 0.0, 1.0, 8.0])),
        "log_scale": draw(st.sampled_from([-12.0, 0.0, 2.0])),
        "mask": draw(st.sampled_from(["none", "some", "one", "all padding"])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def make_mask(kind: str, batch: int, num_tokens: int, generator: torch.Generator) -> Tensor | None:
    if kind == "none":
        return None
    mask = torch.rand(batch, num_tokens, generator=generator) < 0.6
    mask[:, 0] = True
    if kind == "one":
        mask[:, 1:] = False
    if kind == "all padding":
        mask[0] = False
    return mask


def fuzz(case: dict) -> None:
    generator = torch.Generator().manual_seed(case["seed"])
    torch.manual_seed(case["seed"])
    options, batch = case["options"], case["batch"]
    layer = KEPAttention(**options)
    with torch.no_grad():
        layer.log_lambda += case["log_lambda"]
        layer.v_tril_raw += torch.diag_embed(torch.full((options["rank"],), case["log_scale"]))
    x = tokens(
        case["kind"], batch, options["num_tokens"], options["dim"], generator=generator
    ).requires_grad_()
    mask = make_mask(case["mask"], batch, options["num_tokens"], generator)
    assert_trains_and_predicts(layer, x, mask)
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_fuzzed_layers_are_finite(tried) -> None:
    given(case=cases())(FUZZ(fuzz))()
    tried("fuzzed KEP layers: loss, gradients and prediction finite", FUZZED)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", ["sgpa exponential", "sgpa ard", "primal", "softmax"])
def test_other_layers_are_finite_or_say_why(name, kind, tried) -> None:
    layers = {
        "sgpa exponential": lambda: SGPAttention(12, 3, num_inducing=5),
        "sgpa ard": lambda: SGPAttention(12, 3, num_inducing=5, kernel="ard"),
        "primal": lambda: PrimalAttention(12, 3, rank=5),
        "softmax": lambda: SoftmaxAttention(12, 3),
    }
    tries = many(2, 40)
    for seed in range(tries):
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        x = tokens(kind, 3, 7, 12, generator=generator)
        mask = make_mask(["none", "some", "one"][seed % 3], 3, 7, generator)
        layer = layers[name]()
        if name == "sgpa exponential" and kind in ("large", "spike"):
            # its kernel exp(q·k) has no bound: such inputs cannot have a finite answer
            with pytest.raises((UserError, AssertionError)):
                assert_trains_and_predicts(layer, x, mask)
            with pytest.raises(UserError, match="finite"):
                predict(Classifier(layer, 12, 3), {"x": x}, num_samples=2)
        else:
            assert_trains_and_predicts(layer, x, mask)
    tried("other attention layers on broken inputs", tries)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 3e38])
def test_prediction_of_what_is_not_finite_is_refused(value, tried) -> None:
    torch.manual_seed(0)
    model = Classifier(KEPAttention(12, 3, rank=4), 12, 3)
    x = torch.randn(2, 5, 12)
    x[1, 2] = value

    if abs(value) == float("inf") or value != value:
        with pytest.raises(UserError, match="finite"):
            predict(model, x, num_samples=2)
    else:
        assert_finite_or_refused(model, x)
    layer = KEPAttention(12, 3, rank=4, check_finite=True)
    if not torch.tensor(value).isfinite():
        with pytest.raises(UserError, match="x must be finite"):
            layer(x)
    tried("predictions from NaN, infinite and overflowing inputs", 2)


@pytest.mark.parametrize("name", ["log_lambda", "v_tril_raw"])
@pytest.mark.parametrize("value", [-1000.0, -100.0, 100.0, 1000.0])
def test_extreme_parameters_are_finite_or_refused(name, value, tried) -> None:
    torch.manual_seed(0)
    model = Classifier(KEPAttention(12, 3, rank=4), 12, 3)
    with torch.no_grad():
        getattr(model.layer, name).fill_(value)
    x = torch.randn(2, 5, 12)

    assert_finite_or_refused(model, x)
    tried("predictions with extreme log λ and log L", 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
@pytest.mark.parametrize("noise", ["joint", "token"])
def test_half_precision_trains(dtype, projection, noise, plain_products, tried) -> None:
    tries = many(4, 20)
    for seed in range(tries):
        torch.manual_seed(seed)
        layer = KEPAttention(12, 3, rank=4, projection=projection, noise=noise)
        generator = torch.Generator().manual_seed(seed)
        kind = ("normal", "constant", "zero", "repeated")[seed % 4]
        x = tokens(kind, 3, 7, 12, generator=generator)
        with warnings.catch_warnings(), torch.autocast("cpu", dtype):
            warnings.simplefilter("ignore")
            assert_trains_and_predicts(layer, x, None)
    tried("half-precision training steps", tries)


@pytest.mark.parametrize("num_classes", [1, 2])
@pytest.mark.parametrize("examples", [1, 5])
def test_metrics_of_degenerate_sets_are_numbers_or_warned_of(num_classes, examples, tried) -> None:
    from kepsvgp.metrics import UndefinedMetricWarning, all_metrics

    for kind in ("sure", "unsure"):
        probs = torch.full((examples, num_classes), 1 / num_classes)
        if kind == "sure":
            probs = torch.eye(num_classes)[torch.zeros(examples, dtype=torch.long)]
        for label in range(num_classes):
            labels = torch.full((examples,), label)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                values = all_metrics(probs, labels)
            unknown = [name for name, value in values.items() if value != value]
            said = " ".join(str(w.message) for w in caught)
            assert all(issubclass(w.category, UndefinedMetricWarning) for w in caught)
            assert not unknown or said, unknown
    tried("metrics of one class, one example, equal labels", 2 * num_classes)


def test_metrics_refuse_numbers_that_are_no_probabilities(tried) -> None:
    from kepsvgp.metrics import all_metrics

    bad = [
        torch.tensor([[float("nan"), 0.5]]),
        torch.tensor([[float("inf"), 0.0]]),
        torch.tensor([[-0.5, 1.5]]),
        torch.tensor([[0.2, 0.2]]),
    ]
    for probs in bad:
        with pytest.raises(ValueError, match=r"prob"):
            all_metrics(probs, torch.tensor([0]))
    tried("metrics of what is no distribution", len(bad))


def test_prediction_from_logits_is_a_distribution_for_any_finite_logits(tried) -> None:
    generator = torch.Generator().manual_seed(0)
    tries = many(50, 2_000)
    for number in range(tries):
        scale = 10.0 ** (number % 40 - 3)
        logits = scale * torch.randn(3, 4, 5, generator=generator)
        prediction = Prediction.from_logits(logits.clamp(-3e38, 3e38))
        assert prediction.probs.isfinite().all()
        assert torch.allclose(prediction.probs.sum(-1), torch.ones(4), atol=1e-5)
    tried("predictions from logits of any size", tries)


def write_images(folder: Path, counts: dict[str, int], kind: str) -> None:
    random = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shape = (1, 1, 3) if kind == "one pixel" else (9, 7, 3)
            pixels = random.integers(0, 256, shape, dtype=np.uint8)
            if kind == "constant":
                pixels[:] = 77
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


DEGENERATE = {
    "one class": ({"all": {"a": 12}}, "noise", ()),
    "no image": ({"all": {"a": 0, "b": 0}}, "noise", ()),
    "one image": ({"all": {"a": 1, "b": 0}}, "noise", ()),
    "one image a class": ({"all": {"a": 1, "b": 1}}, "noise", ()),
    "equal images": ({"all": {"a": 12, "b": 12}}, "constant", ()),
    "images of one pixel": ({"all": {"a": 12, "b": 12}}, "one pixel", ()),
    "equal labels in the test set": (
        {"train": {"a": 12, "b": 12}, "test": {"a": 5}}, "noise", ()
    ),
    "one example to test": ({"train": {"a": 12, "b": 12}, "test": {"b": 1}}, "noise", ()),
    "one example to train": ({"all": {"a": 12, "b": 12}}, "noise", ("data.train_limit=1",)),
    "one example to validate": ({"all": {"a": 12, "b": 12}}, "noise", ("data.val_limit=1",)),
    "rank beyond tokens": ({"all": {"a": 12, "b": 12}}, "noise", ("model.kep.rank=50",)),
    "one token": ({"all": {"a": 12, "b": 12}}, "noise", ("model.patch_size=8",)),
}  # fmt: skip


@pytest.mark.parametrize("case", list(DEGENERATE)[: many(4, len(DEGENERATE))])
def test_degenerate_data_train_to_finite_numbers_or_are_refused(
    case, processes, tmp_path, tried
) -> None:
    parts, kind, changes = DEGENERATE[case]
    folder = tmp_path / "images"
    for part, counts in parts.items():
        write_images(folder if part == "all" else folder / part, counts, kind)
    (tmp_path / "c.toml").write_text(CONFIG)
    run = tmp_path / "run"

    ended = run_command(
        processes, tmp_path / "text", "train", tmp_path / "c.toml", "data.name=images",
        f"data.path={folder}", f"data.root={tmp_path}", "data.image_size=8", "train.epochs=1",
        "train.batch_size=4", *changes, "--out", run,
    )  # fmt: skip

    if ended.code:
        assert_explained(ended)
        assert not (run / "model.safetensors").exists()
    else:
        assert "Traceback" not in ended.err
        (entry,) = RunFolder(run).history()
        assert all(np.isfinite(entry["train"][name]) for name in ("total", "nll", "kl", "ksvd"))
        for weights in RunFolder(run).model().state_dict().values():
            assert weights.isfinite().all()
    tried("degenerate data sets: trained to finite numbers, or refused", 1)


def test_the_long_part_is_long() -> None:
    assert not LONG or FUZZED == 10_000
