"""Attention modules that stay, and show what enters them to novelty alone."""

import families
import pytest
import torch
from torch.testing import assert_close

from kepsvgp import convert, fit_novelty, load_pretrained, predict, save_pretrained
from kepsvgp.attention.novelty import looked_at, observing
from kepsvgp.conversion.maps import find_maps
from kepsvgp.conversion.watch import Watch, watched_layers


def names_of(model) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[layer].rpartition(".")[0] for layer in looked_at(model).layers]


def test_first_and_middle_of_the_layers_are_watched_and_answer_as_before() -> None:
    model, inputs = families.make("bert")
    before = model.eval()(**inputs).logits
    attention = [name for name, module in model.named_modules() if find_maps(module) is not None]

    convert(model)

    first, middle = attention[0], attention[(len(attention) - 1) // 2]
    assert watched_layers(model) == {first: first == middle, middle: True}
    assert names_of(model) == [first, middle, attention[-1]]
    assert torch.equal(model(**inputs).logits, before)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "vit", "llama"])
def test_watched_queries_and_keys_are_those_of_the_module(name: str) -> None:
    model, inputs = families.make(name)
    convert(model)
    seen = []
    layers = [layer for layer in looked_at(model).layers if isinstance(layer, Watch)]
    with observing(layers, lambda place, tokens: seen.append((layers[place], tokens))):
        model(**inputs)
    for layer, tokens in seen:
        module = next(m for m in model.modules() if m._modules.get("watch") is layer)
        maps = find_maps(module)
        own = tokens.make_qk()
        queries = tokens.x @ maps.query.weight.T
        queries = queries if maps.query.bias is None else queries + maps.query.bias
        heads = queries.unflatten(-1, (maps.num_heads, -1)).transpose(1, 2)
        assert_close(own[:, : maps.num_heads], heads)
    assert len(seen) == len(layers) > 0


@pytest.mark.parametrize("mean", ["attention", "zero"])
def test_layer_that_is_converted_later_is_watched_no_more(mean: str, tmp_path) -> None:
    model, inputs = families.make("bert")
    convert(model, mean=mean)
    convert(model, [0], mean=mean)

    assert not hasattr(model.get_submodule(names_of(model)[0].removesuffix(".kep")), "watch")
    fit_novelty(model, [inputs])
    save_pretrained(model, tmp_path)
    loaded = load_pretrained(tmp_path)
    assert watched_layers(loaded) == watched_layers(model)
    one, two = (
        predict(each, inputs, generator=torch.Generator().manual_seed(0))
        for each in (model, loaded)
    )
    assert_close(one.novelty, two.novelty)


def test_leverage_is_that_of_the_middle_layer_whichever_is_converted() -> None:
    model, _ = families.make("bert")
    for layers, place in (([2], 1), ([1], 1), ([0], 1)):
        model, _ = families.make("bert")
        convert(model, layers)
        found = looked_at(model)
        name = {module: name for name, module in model.named_modules()}[found.layers[found.middle]]
        assert "layer.1." in name
        assert found.middle == place


class Skipping(torch.nn.Module):
    """Its first block reads another sequence, or is passed over."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3)
        )
        self.head, self.how = torch.nn.Linear(8, 3), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "crosses":
            x = self.blocks[0](x, x.flip(1), x.flip(1))[0]
        for block in self.blocks[1:]:
            x = x + block(x, x, x)[0]
        return self.head(x.mean(1))


@pytest.mark.parametrize("how", ["crosses", "skips"])
def test_module_that_shows_nothing_is_left_out(how: str, tmp_path) -> None:
    torch.manual_seed(0)
    model = convert(Skipping(how).eval())
    fit_novelty(model, [torch.randn(30, 4, 8)])
    assert len(looked_at(model).layers) == 2
    new = torch.randn(5, 4, 8)
    expected = predict(model, new, generator=torch.Generator().manual_seed(0))
    save_pretrained(model, tmp_path)
    loaded = load_pretrained(tmp_path, model=Skipping(how))
    found = predict(loaded, new, generator=torch.Generator().manual_seed(0))
    assert_close(found.novelty, expected.novelty, rtol=1e-4, atol=1e-4)


def test_encoders_in_a_row_are_watched_without_nested_tensors() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(
                torch.nn.TransformerEncoder(layer, 2) for _ in range(2)
            )
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x, src_key_padding_mask=hidden)
            return self.head(x.mean(1))

    model = convert(Two().eval())
    hidden = torch.arange(5) >= torch.randint(1, 6, (30, 1))
    batch = {"x": torch.randn(30, 5, 8), "hidden": hidden}
    fit_novelty(model, [batch])
    assert predict(model, batch).novelty.isfinite().all()
