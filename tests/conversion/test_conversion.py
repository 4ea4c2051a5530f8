"""Which layers are converted, how one's own attention is served, how close the start is."""

import copy
from functools import partial

import families
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp import predict
from kepsvgp.attention import fixed_draws
from kepsvgp.attention.base import stochastic_layers, use_draws
from kepsvgp.conversion import (
    ConvertedAttention,
    Source,
    converted_layers,
    load_pretrained,
    parameter_groups,
    save_pretrained,
)
from kepsvgp.conversion.warm_start import balance
from kepsvgp.errors import UserError

# the paper's layer in the place of the module
convert = partial(kepsvgp.convert, mean="zero")


class OwnAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        q, k, v = (
            each(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        mask = torch.arange(tokens.shape[1]) < lengths[:, None, None, None]
        out = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.o(out.transpose(1, 2).flatten(2))


class ConvertedOwnAttention(ConvertedAttention):
    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, OwnAttention)

    @classmethod
    def read(cls, module: nn.Module) -> Source:
        assert isinstance(module, OwnAttention)
        return Source(module.q, module.k, module.v, module.heads, module.o)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.attend(tokens, torch.arange(tokens.shape[1]) < lengths[:, None])


class OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(OwnAttention(12, 2) for _ in range(3))
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = tokens + block(tokens, lengths)
        return self.head(tokens[:, 0])


def own_batch() -> dict[str, Tensor]:
    tokens = torch.randn(5, 7, 12, generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens, "lengths": torch.tensor([7, 1, 3, 7, 2])}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(1, [2]), (2, [1, 2]), ("all", [0, 1, 2]), ([0], [0]), ([-1, 0, 2], [0, 2])],
)
def test_layers_may_be_a_number_indices_or_all(layers, expected) -> None:
    model, _ = families.make("bert")

    convert(model, layers, rank=3)

    names = [f"bert.encoder.layer.{index}.attention.self" for index in expected]
    assert list(converted_layers(model)) == names


@pytest.mark.parametrize("layers", [0, 4, -1, [], [3], [-4]])
def test_layers_outside_the_model_are_refused(layers) -> None:
    model, _ = families.make("bert")

    with pytest.raises(UserError, match="layers must be"):
        convert(model, layers)


def test_converting_a_layer_twice_is_refused_and_the_rest_can_follow() -> None:
    model, _ = families.make("bert")
    convert(model, rank=3)

    with pytest.raises(UserError, match="was converted before"):
        convert(model, rank=3)
    convert(model, [0, 1], rank=3)

    assert len(converted_layers(model)) == 3


def test_a_model_without_known_attention_is_refused_with_its_reasons() -> None:
    with pytest.raises(UserError, match="no module called attention"):
        convert(nn.Linear(3, 3))
    with pytest.raises(UserError, match="mean='attention'"):
        convert(OwnModel())


def test_an_adapter_serves_own_attention(tmp_path) -> None:
    model = convert(OwnModel(), 2, adapters=[ConvertedOwnAttention], posterior_scale=1.0)

    save_pretrained(model, tmp_path)
    restored = load_pretrained(tmp_path, model=OwnModel(), adapters=[ConvertedOwnAttention])

    first, second = (
        predict(each, own_batch(), num_samples=3, generator=torch.Generator().manual_seed(0))
        for each in (model, restored)
    )
    assert first.epistemic.min() > 0
    assert_close(first.probs, second.probs, rtol=0, atol=0)
    with pytest.raises(UserError, match="adapters must include ConvertedOwnAttention"):
        load_pretrained(tmp_path, model=OwnModel())


def test_unequal_widths_are_refused() -> None:
    attention = OwnAttention(12, 2)
    attention.q = nn.Linear(12, 24)

    with pytest.raises(UserError, match="query and key maps must be square"):
        convert(nn.Sequential(attention), adapters=[ConvertedOwnAttention])


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_warm_start_brings_the_layer_close_to_the_original(name: str) -> None:
    model, batch = families.make(name)
    originals, cold, warm = (copy.deepcopy(model).eval() for _ in range(3))

    convert(cold)
    convert(warm, calibration=[batch], warm_steps=200)

    with torch.no_grad():
        target = originals(**batch).logits
        distances = []
        for each in (cold, warm):
            (layer,) = stochastic_layers(each)
            with use_draws({layer: layer.v_mean.unsqueeze(0)}):
                distances.append((each(**batch).logits - target).square().mean().item())
    (converted,) = converted_layers(warm).values()
    assert converted.start_error is not None
    assert converted.start_error < 0.1
    assert distances[1] < 0.1 * distances[0]


def test_warm_start_touches_nothing_but_the_new_layer() -> None:
    model, batch = families.make("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}

    convert(model, calibration=[batch], warm_steps=5)

    for name, value in model.state_dict().items():
        if name in before:
            assert_close(value, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("projection", ["dual", "landmark", "free"])
def test_balance_keeps_the_mean_and_sets_its_size(projection) -> None:
    model, _ = families.make("vit")
    convert(model, rank=3, projection=projection, posterior_scale=0.5)
    (kep,) = stochastic_layers(model)
    with torch.no_grad():
        kep.log_lambda.normal_()
    x = torch.randn(2, 5, families.WIDTH)
    expected = kep.posterior_mean(x)

    balance(kep)

    assert_close(kep.posterior_mean(x), expected, rtol=1e-5, atol=1e-6)
    assert_close(kep.v_mean.square().mean(), torch.tensor(1.0))


def test_empty_calibration_is_refused() -> None:
    model, _ = families.make("bert")

    with pytest.raises(UserError, match="calibration must hold"):
        convert(model, calibration=[])


def test_parameter_groups_cover_each_parameter_once() -> None:
    model, _ = families.make("bert")
    convert(model, rank=3)
    model.bert.embeddings.requires_grad_(False)

    old, new = parameter_groups(model, lr=1e-5, new_lr=1e-3, weight_decay=0.01)

    trained = [p for p in model.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in (*old["params"], *new["params"])}
    assert len(trained) == len(old["params"]) + len(new["params"])
    assert (old["lr"], new["lr"]) == (1e-5, 1e-3)
    (layer,) = converted_layers(model).values()
    took_over = {"to_qk.weight", "to_qk.bias"}
    assert {id(p) for p in new["params"]} == {
        id(p) for name, p in layer.kep.named_parameters() if name not in took_over
    }


def test_copies_of_a_converted_model_are_independent() -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    model.eval()
    clone = copy.deepcopy(model)

    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.zero_()
        with fixed_draws(model, 1):
            assert model(**batch).logits.abs().min() > 0


@pytest.mark.parametrize("side", ["q", "k"])
def test_a_bias_of_one_map_alone_is_kept(side: str) -> None:
    own = OwnAttention(12, 3)
    setattr(own, side, nn.Linear(12, 12))
    kep = ConvertedOwnAttention(own).kep
    expected = {each: torch.zeros(12) for each in "qk"} | {side: getattr(own, side).bias}
    assert_close(kep.to_qk.bias, torch.cat([expected["q"], expected["k"]]))


@pytest.mark.parametrize("rank", [4, 7])
def test_conversion_begins_as_attention_with_a_cosine_kernel(rank: int) -> None:
    """At any rank from the width of a head on."""
    torch.manual_seed(0)
    own, x = OwnAttention(12, 3), torch.randn(2, 5, 12)
    kep = ConvertedOwnAttention(own, rank=rank).kep
    q, k, v = (each(x).unflatten(-1, (3, -1)).transpose(1, 2) for each in (own.q, own.k, own.v))
    kernel = nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).mT
    expected = ((kernel + kernel.mT) @ v / 5).transpose(1, 2).flatten(2)
    assert_close(kep.posterior_mean(x), expected)


def test_conversion_keeps_the_mode_and_what_is_frozen() -> None:
    own = OwnAttention(12, 3).eval()
    assert not any(part.training for part in ConvertedOwnAttention(own).modules())
    assert ConvertedOwnAttention(own).kep.to_qk.weight.requires_grad
    own.requires_grad_(False)
    kep = ConvertedOwnAttention(own).kep
    assert not kep.to_qk.weight.requires_grad
    assert kep.v_mean.requires_grad


class Shared(nn.Module):
    """Two blocks with one attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        attention = OwnAttention(8, 2)
        self.blocks = nn.ModuleList([nn.ModuleDict({"a": attention}) for _ in range(2)])

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = tokens + block["a"](tokens, lengths)
        return tokens.mean(dim=1)


def test_attention_that_blocks_share_stays_shared(tmp_path) -> None:
    model = convert(Shared(), "all", adapters=[ConvertedOwnAttention])

    first, second = (block["a"] for block in model.blocks)
    assert first is second
    assert isinstance(first, ConvertedOwnAttention)
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path, model=Shared(), adapters=[ConvertedOwnAttention])
    assert again.blocks[0]["a"] is again.blocks[1]["a"]


def test_warm_start_sees_the_output_before_it_is_changed_in_place() -> None:
    class Block(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.attention, self.in_place = nn.MultiheadAttention(8, 2, batch_first=True), in_place

        def forward(self, x: Tensor) -> Tensor:
            y = self.attention(x, x, x, need_weights=False)[0]
            if self.in_place:
                y += 10 * x
                return y
            return y + 10 * x

    errors = []
    for in_place in (True, False):
        torch.manual_seed(0)
        model, x = nn.Sequential(Block(in_place)), torch.randn(16, 5, 8)
        torch.manual_seed(1)
        convert(model, calibration=[x], warm_steps=30)
        errors += [layer.start_error for layer in converted_layers(model).values()]
    assert errors[0] == errors[1]


def masked_encoder() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 13, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[2] = True
    return encoder, {"src": torch.randn(3, 5, 12), "src_key_padding_mask": padding}


def test_a_row_of_padding_alone_does_not_spoil_the_start() -> None:
    encoder, batch = masked_encoder()
    whole, _ = masked_encoder()

    convert(encoder, calibration=[batch], warm_steps=5)
    convert(whole, calibration=[{name: value[:2] for name, value in batch.items()}], warm_steps=5)

    for ours, theirs in zip(encoder.parameters(), whole.parameters(), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("batch", [torch.zeros(3, 5, 12), torch.full((3, 5, 12), torch.nan)])
def test_batches_that_nothing_can_be_fitted_to_leave_the_model_alone(batch: Tensor) -> None:
    encoder, _ = masked_encoder()
    encoder.to(torch.float64)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}

    with pytest.raises(UserError, match="calibration must let the layer be fitted"):
        convert(encoder, "all", calibration=[batch.double()], warm_steps=2)

    after = encoder.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
