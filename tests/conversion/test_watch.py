"""Attention modules that stay, and show what enters them to novelty alone."""

import families
import pytest
import torch
from torch.testing import assert_close

from kepsvgp import convert, fit_novelty, load_pretrained, predict, save_pretrained
from kepsvgp.attention.novelty import observed_layers, observing
from kepsvgp.conversion.maps import find_maps
from kepsvgp.conversion.watch import Watch, watched_layers


def names_of(model) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[layer].rpartition(".")[0] for layer in observed_layers(model)]


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
    layers = [layer for layer in observed_layers(model) if isinstance(layer, Watch)]
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
