from collections import Counter
from typing import Any

import families
import pytest
import torch
from conversion.test_conversion import ConvertedOwnAttention, OwnModel, own_batch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import KEPAttention, convert, export, predict
from kepsvgp.attention import fixed_draws
from kepsvgp.attention.base import use_draws
from kepsvgp.conversion.mean import Pair
from kepsvgp.inference.calls import call
from kepsvgp.inference.trunk import with_remembered_trunk


@pytest.fixture(autouse=True)
def sampled(monkeypatch) -> None:
    """Draws through the model as it is, not linearised."""
    monkeypatch.setattr(Pair, "is_linear", False)


def plain_loop(model: nn.Module, inputs: object, num_samples: int) -> Tensor:
    """The whole model once a sample, with the draws that `predict` makes."""
    model.eval()
    logits = []
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), fixed_draws(model, num_samples, generator=generator) as draws:
        for sample in range(num_samples):
            with use_draws({layer: u[sample : sample + 1] for layer, u in draws.items()}):
                logits.append(call(model, inputs))
    return torch.stack(logits)


def predicted(model: nn.Module, inputs: object, num_samples: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(0)
    result = predict(model, inputs, num_samples=num_samples, generator=generator, keep_logits=True)
    return result.logits


@pytest.mark.parametrize("layers", [1, 2, [0, 2], "all"])
@pytest.mark.parametrize("name", ["bert", "distilbert", "vit"])
def test_prediction_equals_the_plain_loop(name: str, layers) -> None:
    model, batch = families.make(name)
    convert(model, layers, rank=3, posterior_scale=1.0)

    assert_close(predicted(model, batch, 3), plain_loop(model, batch, 3), rtol=1e-5, atol=1e-6)


# what their heads read is the first token of the last block
FIRST = (
    *families.TEXT, *families.IMAGE, "camembert", "xlm-roberta", "mpnet", "deberta-v2",
    "deberta-v3", "modernbert",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", families.EVERY)
def test_first_token_alone_is_carried_through_the_samples_where_no_other_is_read(name: str) -> None:
    model, batch = families.loud(name)
    families.spread(convert(model))
    calls: Counter[str] = Counter()
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_hook(lambda *_: calls.update(["head"]))

    found = predicted(model, batch, 5)

    # one pass for all tokens, and one for the first of all samples
    assert (calls["head"] == 2) == (name in FIRST)
    assert_close(found, plain_loop(model, batch, 5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*families.TEXT, *families.IMAGE])
def test_first_token_alone_is_carried_through_the_samples_of_a_layer_in_place(name: str) -> None:
    model, batch = families.loud(name)
    convert(model, mean="zero", posterior_scale=1.0)
    calls: Counter[str] = Counter()
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_hook(lambda *_: calls.update(["head"]))

    found = predicted(model, batch, 5)

    assert found is not None
    assert found.std(dim=0).min() > 1e-4
    assert calls["head"] == 2
    assert_close(found, plain_loop(model, batch, 5), rtol=1e-4, atol=1e-5)


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[:, 0])


@pytest.mark.parametrize("is_linear", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoders_of_torch_draw_in_every_sample(batch_first, is_linear, monkeypatch) -> None:
    """Fused code would leave the draws out; of one sequence, token first, each is an example."""
    model, x = Encoder(batch_first).eval(), torch.randn(5, 3 if batch_first else 1, 8)
    families.spread(convert(model))
    monkeypatch.setattr(Pair, "is_linear", is_linear)

    found = predicted(model, x, 4)

    monkeypatch.setattr("kepsvgp.inference.calls.with_remembered_trunk", lambda model: model)
    assert found is not None
    assert found.std(dim=0).min() > 0.01
    assert_close(found, predicted(model, x, 4), rtol=1e-4, atol=1e-4)


def test_mean_that_draws_nothing_proves_no_shortcut(monkeypatch) -> None:
    """A model that reads of other tokens what is drawn there alone."""
    model, batch = families.loud("bert")
    families.spread(convert(model))
    at_mean = model.bert(**batch).last_hidden_state.detach()

    def read_draws(module: nn.Module, args: Any, output: Any) -> Any:
        hidden = output.last_hidden_state
        drawn = (hidden - at_mean.repeat(len(hidden) // 4, 1, 1)[:, : hidden.shape[1]])[:, 1:]
        output.pooler_output = output.pooler_output + drawn.sum(dim=1)
        return output

    model.bert.register_forward_hook(read_draws)
    monkeypatch.setattr(Pair, "is_linear", True)

    found = predicted(model, batch, 4)

    monkeypatch.setattr("kepsvgp.inference.calls.with_remembered_trunk", lambda model: model)
    assert_close(found, predicted(model, batch, 4), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("how", ["hook", "forward"])
def test_what_was_changed_in_the_last_block_stays(how: str) -> None:
    model, batch = families.loud("bert")
    families.spread(convert(model))
    block = model.bert.encoder.layer[-1]
    if how == "hook":
        block.attention.self.register_forward_hook(lambda _, args, out: (2 * out[0], *out[1:]))
    else:
        before = block.forward
        block.forward = lambda *args, **kwargs: before(*args, **kwargs) * torch.linspace(0, 1, 12)

    found = predicted(model, batch, 4)

    assert_close(found, plain_loop(model, batch, 4), rtol=1e-4, atol=1e-5)


def test_layers_before_the_first_stochastic_one_run_once() -> None:
    model, batch = families.make("bert")
    convert(model, [1], rank=3)
    calls: Counter[int] = Counter()
    for index, block in enumerate(model.bert.encoder.layer):
        block.intermediate.register_forward_hook(lambda *_, i=index: calls.update([i]))

    predicted(model, batch, 5)

    assert calls == {0: 1, 1: 5, 2: 5}


def test_hooks_on_remembered_blocks_still_run() -> None:
    model, batch = families.make("bert")
    convert(model, [1], rank=3)
    seen = []
    model.bert.encoder.layer[0].register_forward_hook(lambda *_: seen.append(1))

    predicted(model, batch, 5)

    assert len(seen) == 5


def test_nothing_of_the_model_is_touched() -> None:
    model = convert(OwnModel(), mean="zero", adapters=[ConvertedOwnAttention])
    before = [dict(vars(module)) for module in model.modules()]

    with_remembered_trunk(model)(**own_batch())

    assert all(
        vars(module).keys() == old.keys() and vars(module)["_modules"] is old["_modules"]
        for module, old in zip(model.modules(), before, strict=True)
    )


class Unusual(nn.Module):
    """Runs its blocks in another order than it lists them, one of them twice, and in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), KEPAttention(4, 1, rank=2)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        first, late, kep = self.blocks
        x = first(first(x))
        x += kep(x)
        x = late(x)
        return self.head(x.mean(dim=1))


def test_blocks_in_any_order_and_in_place_are_served_rightly() -> None:
    model, x = Unusual(), torch.randn(3, 5, 4)

    assert_close(predicted(model, x, 4), plain_loop(model, x, 4), rtol=0, atol=0)


class InPlace(nn.Module):
    """A block that adds to what it is given, passed on as it is, in a dict or in a list."""

    def __init__(self, attention: nn.Module, kind: str) -> None:
        super().__init__()
        self.attention, self.kind = attention, kind

    def forward(self, given: Any) -> Any:
        x = given[{"dict": "h", "list": 0}[self.kind]] if self.kind != "tensor" else given
        x += self.attention(x)
        return given


class Residual(nn.Module):
    """Blocks that change their input in place, as many do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        maps = (nn.Linear(4, 4), nn.Linear(4, 4), KEPAttention(4, 1, rank=2, posterior_scale=1.0))
        self.blocks = nn.ModuleList([InPlace(each, kind) for each in maps])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        given: Any = {"tensor": x, "dict": {"h": x}, "list": [x]}[self.kind]
        for block in self.blocks:
            given = block(given)
        return self.head(x.mean(dim=1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["tensor", "dict", "list"])
def test_blocks_that_work_in_place_are_served_rightly(kind, mode) -> None:
    model, x = Residual(kind), torch.randn(3, 5, 4)
    expected = plain_loop(model, x, 4)

    with mode():
        assert_close(predicted(model, x, 4), expected, rtol=0, atol=0)


class Opaque:
    """A container that nobody knows how to copy."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Wrapping(nn.Module):
    def forward(self, x: Tensor) -> Opaque:
        return Opaque(x + 1)


class ThroughOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kep = KEPAttention(4, 1, rank=2, posterior_scale=1.0)
        self.blocks = nn.ModuleList([Wrapping(), kep])

    def forward(self, x: Tensor) -> Tensor:
        wrapping, kep = self.blocks
        wrapped = wrapping(x)
        wrapped.x += kep(wrapped.x)
        return wrapped.x.mean(dim=1)


def test_output_that_cannot_be_copied_is_not_remembered() -> None:
    model, x = ThroughOpaque(), torch.randn(3, 5, 4)

    assert_close(predicted(model, x, 4), plain_loop(model, x, 4), rtol=0, atol=0)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y


class Aliased(nn.Module):
    """Works in place on what one name of a tensor says and reads the other."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        kep = KEPAttention(4, 1, rank=2, posterior_scale=1.0)
        self.blocks, self.head = nn.ModuleList([block, kep]), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        block, kep = self.blocks
        x = x.clone()
        found = block(x)
        first, second = found if isinstance(found, tuple) else (found.view_as(x), x)
        first += 1
        return self.head((second + kep(first)).mean(dim=1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("block", [nn.Identity(), nn.Dropout(), nn.Flatten(0, 1), Twice()])
def test_tensor_of_two_names_is_served_rightly(block, mode) -> None:
    model, x = Aliased(block), torch.randn(3, 5, 4)
    expected = plain_loop(model, x, 4)

    with mode():
        assert_close(predicted(model, x, 4), expected, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_trunk_runs_once_in_every_mode(mode) -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    calls = []
    model.bert.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))

    with mode():
        predicted(model, batch, 5)

    assert len(calls) == 1


class Repeated(Unusual):
    def forward(self, x: Tensor) -> Tensor:
        first, _, kep = self.blocks
        return self.head(kep(first(first(x))).mean(dim=1))


def test_block_that_runs_twice_is_remembered_for_both() -> None:
    model, x = Repeated(), torch.randn(3, 5, 4)
    expected, calls = plain_loop(model, x, 4), []
    linear = model.blocks[0].forward
    model.blocks[0].forward = lambda x: calls.append(1) or linear(x)

    assert_close(predicted(model, x, 4), expected, rtol=0, atol=0)
    assert len(calls) == 2


def test_blocks_in_any_order_are_exported_rightly(tmp_path) -> None:
    model, x = Unusual(), torch.randn(3, 5, 4)

    program = torch.export.load(export(model, tmp_path / "model.pt2", x, num_samples=3))

    expected = predict(model, x, num_samples=3)
    assert program.module()(inputs=x)[0].shape == expected.probs.shape


def test_model_that_is_a_stochastic_layer_is_called_as_it_is() -> None:
    layer, x = KEPAttention(4, 1).eval(), torch.randn(2, 3, 4)
    draws = {layer: layer.draw(1)}

    with use_draws(draws), torch.no_grad():
        assert_close(with_remembered_trunk(layer)(x), layer(x), rtol=0, atol=0)
