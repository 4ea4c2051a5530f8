"""Attention that stays as it is, as the mean function of a pair of GPs, in every family."""

from typing import Any, NamedTuple

import families
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp import convert, fit_novelty, fit_posterior, loss, predict
from kepsvgp.conversion import converted_layers
from kepsvgp.conversion.maps import find_maps
from kepsvgp.conversion.mean import Pair
from kepsvgp.errors import UserError
from kepsvgp.inference.linear import kep_layers, linearise
from kepsvgp.inference.mode import frozen
from kepsvgp.maths import svgp

# DeBERTa's module compiles a function when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

LABELS = torch.tensor([0, 2, 1, 0])


def answers(model: nn.Module, batch: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return predict(model, batch, num_samples=5, generator=generator).probs


@pytest.mark.parametrize("name", families.EVERY)
def test_every_family_stays_what_it_was_and_gets_its_posterior(name: str, tmp_path) -> None:
    model, batch = families.loud(name)
    before = model(**batch).logits
    names = set(model.state_dict())

    convert(model)

    assert torch.equal(model(**batch).logits, before)
    assert names < set(model.state_dict())
    (layer,) = converted_layers(model)
    assert "decoder" not in layer.split(".")
    assert not layer.startswith("vision_model.head")
    families.spread(model)
    drawn = answers(model, batch)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    # at the mean it is still the model that it was
    assert torch.equal(model(**batch).logits, before)
    model.save_pretrained(tmp_path)
    assert torch.equal(answers(kepsvgp.load_pretrained(tmp_path), batch), drawn)
    # with transformers' own class it would be the model without its posterior
    with pytest.raises(Exception, match=r"open it by kepsvgp\.load_pretrained"):
        type(model).from_pretrained(tmp_path)

    fit_novelty(model, [batch])
    fit_posterior(model, [(batch, LABELS)], prior_precision=1.0)
    prediction = predict(model, batch, num_samples=3)
    assert prediction.novelty is not None
    assert torch.equal(model(**batch).logits, before)
    model.train()
    terms = loss(model(**batch), LABELS, model, num_train=4, ksvd_weight=0.1)
    terms.total.backward()
    gradients = [p.grad for n, p in model.named_parameters() if ".kep.v_" in n]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)


@pytest.mark.parametrize("name", families.SENTENCES)
def test_padding_never_reaches_the_pair(name: str, monkeypatch) -> None:
    # differences of small steps would need a wider tolerance
    monkeypatch.setattr(Pair, "is_linear", False)
    model, _ = families.loud(name)
    eos = 2 if name in ("bart", "t5") else None
    families.spread(convert(model))

    short = answers(model, families.text_batch([7, 3, 5, 7], eos=eos))
    long = answers(model, families.text_batch([7, 3, 5, 7], extra=4, eos=eos))
    alone = answers(model, families.text_batch([7], eos=eos))

    assert_close(long, short, rtol=1e-4, atol=1e-5)
    assert_close(alone, short[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_prediction_is_that_of_the_model_linearised_at_the_mean(name: str) -> None:
    error, moved = _of_linear_model(name, torch.float64)
    assert error < 1e-4 * moved
    error, moved = _of_linear_model(name, torch.float32)
    assert error < 0.01 * moved


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["vit", "gpt2"])
@pytest.mark.parametrize("cast", ["", "around", "within"])
def test_prediction_in_few_bits_is_linear_too(name: str, dtype, cast: str) -> None:
    error, moved = _of_linear_model(name, dtype, cast)
    # draws through the network itself are 59 and 89 % off
    assert error < 0.2 * moved


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_posterior_is_fitted_in_few_bits(dtype: torch.dtype) -> None:
    model, batch = families.loud("vit")
    families.spread(convert(model))
    found = []
    for each in (torch.float32, dtype):
        inputs = {name: _as(value, each) for name, value in batch.items()}
        fit_posterior(model.to(each), [(inputs, LABELS)], prior_precision=1.0)
        (layer,) = kep_layers(model)
        factor = svgp.lower_cholesky(layer.v_tril_raw.detach())
        found.append(factor @ factor.mT)
    assert (found[0] - torch.eye(len(found[0][0, 0]))).abs().max() > 0.1
    assert_close(found[1], found[0], rtol=0, atol=0.1)


def _of_linear_model(name: str, dtype: torch.dtype, cast: str = "") -> tuple[Tensor, Tensor]:
    """How far predictions are from f(m) + J (v − m) in double precision, and J (v − m)."""
    model, batch = families.loud(name)
    model, batch = model.double(), {n: _as(value, torch.float64) for n, value in batch.items()}
    families.spread(convert(model), 0.1)
    (layer,) = kep_layers(model)
    with torch.no_grad():
        layer.v_mean.normal_(std=0.01, generator=torch.Generator().manual_seed(1))
    (jacobian,) = linearise(frozen(model), batch).jacobians
    own = torch.float32 if cast else dtype
    model, batch = model.to(own), {n: _as(value, own) for n, value in batch.items()}
    draws = layer.draw(5, generator=torch.Generator().manual_seed(0))

    if cast == "within":
        # as accelerate does
        model.forward = torch.autocast("cpu", dtype=dtype)(model.forward)
    with torch.autocast("cpu", dtype=dtype, enabled=cast == "around"):
        at_mean = model(**batch).logits
        generator = torch.Generator().manual_seed(0)
        prediction = predict(model, batch, num_samples=5, generator=generator, keep_logits=True)

    steps = (draws - layer.v_mean).double()
    moved = torch.einsum("n c h v r, s h r v -> s n c", jacobian, steps)
    assert prediction.logits is not None
    # each draw but the third has its mirror image
    pairs = draws[[0, 1]] + draws[[3, 4]]
    assert_close(pairs.mean(dim=0), 2 * layer.v_mean.to(draws), rtol=1e-3, atol=1e-3)
    return (prediction.logits.double() - at_mean.double() - moved).norm(), moved.norm()


def _as(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def test_shared_key_heads_serve_several_query_heads() -> None:
    model, _ = families.make("llama")
    attention = model.model.layers[-1].self_attn
    maps = find_maps(attention)
    assert maps is not None
    x = torch.randn(2, 5, families.WIDTH)

    keys = (x @ maps.key.weight.mT).unflatten(-1, (families.HEADS, -1))

    expected = attention.k_proj(x)
    assert_close(keys, expected.unsqueeze(-2).expand_as(keys))


class Own(nn.Module):
    """Attention of nobody's library: a map of another width inside, positions in its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(10, 7), nn.Linear(7, 10)

    def forward(self, tokens: Tensor, is_needed: bool = True) -> Tensor:
        mixed = self.mix(tokens)
        return self.back((mixed @ mixed.mT).softmax(-1) @ mixed)


class OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Own(), Own()])
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=1))


def test_own_attention_is_converted_by_its_name(tmp_path) -> None:
    torch.manual_seed(0)
    model, x = OwnModel().eval(), torch.randn(4, 6, 10)
    before = model(x)
    with pytest.raises(UserError, match=r"layers=\['blocks"):
        convert(model)
    with pytest.raises(UserError, match=r"got 'blocks\.2'"):
        convert(model, ["blocks.2"])

    convert(model, ["blocks.1"])

    assert torch.equal(model(x), before)
    drawn = answers(families.spread(model), x)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    kepsvgp.save_pretrained(model, tmp_path)
    loaded = kepsvgp.load_pretrained(tmp_path, model=OwnModel())
    assert torch.equal(answers(loaded, x), drawn)


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_of_torch_stays_what_it_was(batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 17, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padding = torch.randn(3, 5, 12), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    given = x if batch_first else x.transpose(0, 1)
    before = encoder(given, src_key_padding_mask=padding)

    convert(encoder)

    assert_close(encoder(given, src_key_padding_mask=padding), before, rtol=1e-5, atol=1e-5)
    with kepsvgp.attention.base.fixed_draws(families.spread(encoder), 1):
        full = encoder(given, src_key_padding_mask=padding)
        part = encoder(given[1:2, :3] if batch_first else given[:3, 1:2])
    full = full if batch_first else full.transpose(0, 1)
    part = part if batch_first else part.transpose(0, 1)
    assert_close(full[1, :3], part[0], rtol=1e-4, atol=1e-4)


def test_attention_to_another_sequence_is_refused_where_it_is_used() -> None:
    attention = nn.MultiheadAttention(12, 2, batch_first=True)
    model = convert(nn.ModuleDict({"attention": attention}))
    x = torch.randn(2, 3, 12)

    with pytest.raises(UserError, match="must be self-attention"):
        model["attention"](x, x + 1, x + 1)


class ToOther(Own):
    def forward(self, tokens: Tensor, **others: Tensor) -> Tensor:
        return super().forward(next(iter(others.values()), tokens))


@pytest.mark.parametrize("name", ["context", "kv", "memory"])
def test_keyword_of_another_sequence_is_refused(name: str) -> None:
    model = convert(nn.ModuleDict({"attention": ToOther()}), ["attention"])
    x = torch.randn(2, 3, 10)

    model["attention"](x)

    with pytest.raises(UserError, match=f"must be self-attention.*got {name}"):
        model["attention"](x, **{name: x + 1})


class Named(NamedTuple):
    tokens: Tensor
    weights: Tensor


class Several(Own):
    """It returns more than tokens."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: Tensor) -> Any:
        parts = (super().forward(tokens), tokens)
        return Named(*parts) if self.kind is Named else self.kind(parts)


class Reading(nn.Module):
    """The head reads one part of what attention returns."""

    def __init__(self, kind: type, place: int = 0) -> None:
        super().__init__()
        self.attention, self.head, self.place = Several(kind), nn.Linear(10, 3), place

    def forward(self, x: Tensor) -> Tensor:
        found = self.attention(x)
        assert type(found) is self.attention.kind
        return self.head(found[self.place][:, 0])


@pytest.mark.parametrize("kind", [tuple, list, Named])
def test_output_keeps_its_kind(kind: type) -> None:
    torch.manual_seed(0)
    model, x = Reading(kind).eval(), torch.randn(4, 6, 10)
    before = model(x)

    families.spread(convert(model, ["attention"]))

    assert torch.equal(model(x), before)
    assert (answers(model, x) - before.softmax(-1)).abs().max() > 1e-3


def test_posterior_of_what_nobody_reads_is_refused() -> None:
    model, x = convert(Reading(tuple, place=1).eval(), ["attention"]), torch.randn(4, 6, 10)

    with pytest.raises(UserError, match=r"no gradient by attention\.kep"):
        fit_posterior(model, [(x, LABELS)])


class TokensFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = Own(), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x.transpose(0, 1)).mean(dim=0))


@pytest.mark.parametrize("tokens", [3, 4, 6, 8])
def test_attention_that_has_tokens_first_gets_no_posterior(tokens: int) -> None:
    model, x = convert(TokensFirst().eval(), ["mix"]), torch.randn(4, tokens, 10)

    with pytest.raises(UserError, match=r"along its first axis, \(batch, token, width\)"):
        fit_posterior(model, [(x, LABELS)])


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, attn_mask: Tensor) -> Tensor:
        maps = (self.q(x), self.k(x), self.v(x))
        return nn.functional.scaled_dot_product_attention(*maps, attn_mask=attn_mask)


def test_attention_that_pools_by_a_query_of_its_own_is_not_converted() -> None:
    settings = transformers.SiglipVisionConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=17,
        image_size=10, patch_size=5,
    )  # fmt: skip
    model = transformers.SiglipVisionModel(settings).eval()
    assert isinstance(model.get_submodule("head.attention"), nn.MultiheadAttention)

    with pytest.raises(UserError, match="pools the tokens"):
        convert(model, mean="zero")
    assert list(converted_layers(convert(model))) == ["encoder.layers.1.self_attn"]


def test_attention_inside_of_cross_attention_is_left_out() -> None:
    model = nn.Module()
    for name in ("encoder", "cross_attention"):
        block = nn.Module()
        block.self = Causal()
        setattr(model, name, block)

    convert(model)

    assert list(converted_layers(model)) == ["encoder.self"]
