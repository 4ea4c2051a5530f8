from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp import loss, predict
from kepsvgp.attention import fixed_draws
from kepsvgp.conversion import converted_layers, load_pretrained, save_pretrained
from kepsvgp.errors import UserError

# the paper's layer in the place of the module
convert = partial(kepsvgp.convert, mean="zero")

WIDTH, HEADS, CLASSES = 12, 2, 3


class Pooled(nn.Module):
    """A classifier of one's own: mean pooling by the mask, as many have it."""

    def __init__(
        self, batch_first: bool = True, norm_first: bool = False, dropout: float = 0.1
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 17, dropout, batch_first=batch_first, norm_first=norm_first
        )
        nested = batch_first and not norm_first
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.batch_first = batch_first

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x if self.batch_first else x.transpose(0, 1)
        if padding is None:
            return self.head(x.mean(dim=1))
        real = (~padding).unsqueeze(-1)
        return self.head((x * real).sum(dim=1) / real.sum(dim=1))


def batch(extra: int = 0) -> dict[str, Tensor]:
    x = torch.randn(4, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    x = nn.functional.pad(x, (0, 0, 0, extra))
    padding = torch.arange(7 + extra) >= torch.tensor([7, 3, 5, 1]).unsqueeze(1)
    return {"x": x, "padding": padding}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_does_not_change_the_prediction(batch_first: bool, norm_first: bool) -> None:
    model = convert(Pooled(batch_first, norm_first=norm_first), 2, rank=3, posterior_scale=1.0)

    first, second = (
        predict(model, batch(extra), num_samples=3, generator=torch.Generator().manual_seed(0))
        for extra in (0, 5)
    )

    assert_close(first.probs, second.probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("padded", [True, False])
def test_encoder_in_evaluation_draws_where_it_is_asked_to(padded: bool) -> None:
    model = convert(Pooled(), rank=3, posterior_scale=1.0).eval()
    inputs = batch() if padded else {"x": batch()["x"]}

    with torch.no_grad():
        mean, again = model(**inputs), model(**inputs)
        with fixed_draws(model, 1):
            drawn = model(**inputs)

    assert torch.equal(mean, again)
    assert (drawn - mean).abs().min() > 0


@pytest.mark.parametrize("batch_first", [True, False])
def test_layout_of_the_batch_makes_no_difference(batch_first: bool) -> None:
    reference = convert(Pooled(True), rank=3).eval()
    model = convert(Pooled(batch_first), rank=3).eval()
    model.load_state_dict(reference.state_dict())

    outputs = []
    for each in (reference, model):
        with fixed_draws(each, 1, generator=torch.Generator().manual_seed(0)), torch.no_grad():
            outputs.append(each(**batch()))

    assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)


def test_every_parameter_receives_a_gradient() -> None:
    model = convert(Pooled(), "all", rank=3).train()

    terms = loss(model(**batch()), torch.tensor([0, 1, 2, 0]), model, num_train=4, ksvd_weight=1.0)
    terms.total.backward()

    assert len(converted_layers(model)) == 3
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_loop_of_torch_learns() -> None:
    model = convert(Pooled(dropout=0.0), rank=3).train()
    labels = torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    history = []
    for _ in range(30):
        terms = loss(model(**batch()), labels, model, num_train=400, ksvd_weight=0.1)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        history.append(terms.nll.item())

    assert history[-1] < 0.5 * history[0]


@pytest.mark.parametrize("kind", ["attention", "layer", "encoder", "unbiased"])
def test_folder_restores_plain_modules(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 17, activation="gelu", bias=kind != "unbiased")
    model = {
        "attention": nn.MultiheadAttention(WIDTH, HEADS, bias=False),
        "layer": layer,
        "unbiased": layer,
        "encoder": nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), False),
    }[kind]
    model = convert(model, rank=3).eval()
    save_pretrained(model, tmp_path)

    restored = load_pretrained(tmp_path)

    x = torch.randn(7, 2, WIDTH)
    inputs = (x, x, x) if kind == "attention" else (x,)
    outputs = []
    for each in (model, restored):
        with fixed_draws(each, 1, generator=torch.Generator().manual_seed(0)), torch.no_grad():
            out = each(*inputs)
            outputs.append(out[0] if isinstance(out, tuple) else out)
    assert_close(outputs[0], outputs[1], rtol=0, atol=0)


def test_folder_restores_an_own_class_into_an_instance(tmp_path: Path) -> None:
    model = convert(Pooled(), rank=3)
    save_pretrained(model, tmp_path)

    restored = load_pretrained(tmp_path, model=Pooled())

    first, second = (
        predict(each, batch(), num_samples=2, generator=torch.Generator().manual_seed(0))
        for each in (model, restored)
    )
    assert_close(first.probs, second.probs, rtol=0, atol=0)
    with pytest.raises(UserError, match=r"load_pretrained\(folder, model=Pooled"):
        load_pretrained(tmp_path)


def test_folder_with_other_weights_is_refused(tmp_path: Path) -> None:
    save_pretrained(convert(Pooled(), rank=3), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")

    with pytest.raises(UserError, match=r"model\.safetensors must hold.*again"):
        load_pretrained(tmp_path, model=Pooled())
    save_pretrained(convert(Pooled(), rank=3), tmp_path)
    with pytest.raises(UserError, match=r"must have a module encoder\.layers"):
        load_pretrained(tmp_path, model=nn.Sequential(Pooled().encoder))
    wider = Pooled()
    wider.head = nn.Linear(WIDTH, 17)
    with pytest.raises(UserError, match="they are of another model"):
        load_pretrained(tmp_path, model=wider)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no kepsvgp\.json"):
        load_pretrained(tmp_path)


def test_unbatched_input_equals_a_batch_of_one() -> None:
    layer = convert(nn.TransformerEncoderLayer(WIDTH, HEADS, 17, batch_first=True), rank=3).eval()
    x = torch.randn(7, WIDTH)
    padding = torch.arange(7) > 4

    outputs = []
    for inputs in ((x, padding), (x.unsqueeze(0), padding.unsqueeze(0))):
        with fixed_draws(layer, 1, generator=torch.Generator().manual_seed(0)), torch.no_grad():
            outputs.append(layer(inputs[0], src_key_padding_mask=inputs[1]))

    assert_close(outputs[0], outputs[1].squeeze(0))


def test_cross_and_causal_calls_are_refused() -> None:
    attention = convert(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), rank=3)
    x, y = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)

    with pytest.raises(UserError, match="cross-attention"):
        attention(x, y, y)
    with pytest.raises(UserError, match="causal"):
        attention(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))


def test_decoders_and_other_widths_are_refused() -> None:
    with pytest.raises(UserError, match="cross-attention of a decoder"):
        convert(nn.TransformerDecoderLayer(WIDTH, HEADS, 17))
    with pytest.raises(UserError, match="causal attention of a decoder"):
        convert(nn.TransformerDecoderLayer(WIDTH, HEADS, 17), [0])
    with pytest.raises(UserError, match="another width"):
        convert(nn.MultiheadAttention(WIDTH, HEADS, kdim=5))
    with pytest.raises(UserError, match="appends tokens"):
        convert(nn.MultiheadAttention(WIDTH, HEADS, add_zero_attn=True))


class MeanEncoder(nn.TransformerEncoder):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs).mean(1)


class OwnLayer(nn.TransformerEncoderLayer):
    pass


@pytest.mark.parametrize(
    ("encoder", "layer"),
    [(MeanEncoder, nn.TransformerEncoderLayer), (nn.TransformerEncoder, OwnLayer)],
)
def test_folder_does_not_take_an_own_class_for_the_one_it_extends(
    encoder: Any, layer: Any, tmp_path: Path
) -> None:
    def build() -> nn.Module:
        block = layer(8, 2, 16, batch_first=True)
        return encoder(block, 2, enable_nested_tensor=False)

    model = convert(build()).eval()
    save_pretrained(model, tmp_path)
    with pytest.raises(UserError, match="model must be given"):
        load_pretrained(tmp_path)
    again, x = load_pretrained(tmp_path, model=build()), torch.randn(2, 3, 8)
    outputs = []
    for each in (model, again):
        with fixed_draws(each, 1, generator=torch.Generator().manual_seed(0)), torch.no_grad():
            outputs.append(each(x))
    assert_close(*outputs)


def test_folder_does_not_take_one_layer_for_all(tmp_path: Path) -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder: Any = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        encoder.layers[1].norm_first = True
        return encoder

    model = convert(build()).eval()
    save_pretrained(model, tmp_path)

    with pytest.raises(UserError, match="model must be given"):
        load_pretrained(tmp_path)
    again, x = load_pretrained(tmp_path, model=build()), torch.randn(2, 3, 8)
    assert torch.equal(again(x), model(x))


def test_folder_keeps_the_type_of_every_part(tmp_path: Path) -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    model: Any = convert(build()).bfloat16()
    model.norm.float()
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert {name: p.dtype for name, p in again.named_parameters()} == {
        name: p.dtype for name, p in model.named_parameters()
    }
    for name, value in model.state_dict().items():
        assert_close(again.state_dict()[name], value, rtol=0, atol=0)
