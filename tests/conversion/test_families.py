"""Every family with adapters, as a graph and in eight bits, and the guide's table of all that."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import families
import guide
import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp import convert, export, fit_novelty, fit_posterior, predict
from kepsvgp.conversion import converted_layers
from kepsvgp.errors import UserError

peft = pytest.importorskip("peft")

# DeBERTa's module compiles a function when it is imported
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set"),
]
# BART and T5 pool the tokens that say where a text ends, Longformer cuts it into windows: which
# tokens, and how many, are values to torch.export, and no shapes
WITHOUT_GRAPH = ("bart", "t5", "longformer")
# the others are traced, which takes minutes, by `make stress`
LONG = os.environ.get("KEPSVGP_STRESS") == "long"
EXPORTED = families.EVERY if LONG else ("bert", "modernbert", "vit", "gpt2", "t5")


def answers(model: nn.Module, batch: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return predict(model, batch, num_samples=2, generator=generator).probs


@pytest.fixture
def without_checks() -> Iterator[None]:
    """No checks of shapes: while a graph is traced sizes are symbols, which they would fix."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def assert_exported(model: nn.Module, batch: Any, few: Any, path: Path) -> None:
    """The graph answers as `predict` does, to another number of rows too."""
    generator = torch.Generator().manual_seed(0)
    path = export(model, path / "graph.pt2", batch, num_samples=2, generator=generator)
    graph: Callable[..., Any] = torch.export.load(path).module()
    for each in (batch, few):
        # differences of small steps magnify rounding
        assert_close(graph(inputs=each)[0], answers(model, each), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", families.EVERY)
def test_family_takes_adapters(name: str, tmp_path: Path) -> None:
    model, batch = families.loud(name)
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(model, config).eval()
    before = model(**batch).logits

    convert(model)

    assert torch.equal(model(**batch).logits, before)
    drawn = answers(families.spread(model), batch)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    assert_close(answers(kepsvgp.load_pretrained(tmp_path), batch), drawn)


@pytest.mark.usefixtures("without_checks")
@pytest.mark.parametrize("name", EXPORTED)
def test_family_is_exported_or_refused(name: str, tmp_path: Path) -> None:
    model, batch = families.loud(name)
    families.spread(convert(model))
    few = {key: value[:3] for key, value in batch.items()}
    if name in WITHOUT_GRAPH:
        with pytest.raises(UserError, match=r"depends on more than shapes .* need no graph"):
            export(model, tmp_path / "graph.pt2", batch, num_samples=2)
        assert not list(tmp_path.iterdir())
    else:
        assert_exported(model, batch, few, tmp_path)


class Fused(nn.Module):
    """One map makes queries, keys and values, less wide inside than the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv, self.back = nn.Linear(12, 3 * 8), nn.Linear(8, 12)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor) -> Tensor:
        parts = self.qkv(tokens).chunk(3, dim=-1)
        maps = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        seen = ~key_padding_mask[:, None, None]
        out = nn.functional.scaled_dot_product_attention(*maps, attn_mask=seen)
        return self.back(out.transpose(1, 2).flatten(2))


class Unknown(nn.Module):
    """By its names nothing is known, and positions are in its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.back = nn.Linear(12, 7), nn.Linear(7, 12)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor) -> Tensor:
        mixed = self.mix(tokens)
        places = torch.arange(tokens.shape[1])
        scores = mixed @ mixed.mT - (places - places.unsqueeze(1)).abs()
        scores = scores.masked_fill(key_padding_mask.unsqueeze(1), -torch.inf)
        return self.back(scores.softmax(-1) @ mixed)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attn, self.norm = attention, nn.LayerNorm(12)

    def forward(self, tokens: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.norm(tokens + self.attn(tokens, key_padding_mask=src_key_padding_mask))


class Own(nn.Module):
    """A classifier of somebody's own, whose blocks are of one of these kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        make = {
            "torch.nn": lambda: nn.TransformerEncoderLayer(12, 2, 17, batch_first=True),
            "own, fused": lambda: Block(Fused()),
            "own, named": lambda: Block(Unknown()),
        }[kind]
        self.blocks = nn.ModuleList([make(), make()])
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(tokens.shape[1]) >= lengths.unsqueeze(1)
        for block in self.blocks:
            tokens = block(tokens, src_key_padding_mask=padding)
        return self.head(tokens[:, 0])


# the maps that adapters go to, and what to convert
OWN: dict[str, tuple[list[str], Any]] = {
    "torch.nn": (["linear1", "linear2"], 1),
    "own, fused": (["qkv"], 1),
    "own, named": (["mix", "back"], ["blocks.1.attn"]),
}


def own(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    batch = {"tokens": torch.randn(4, 6, 12), "lengths": torch.tensor([6, 2, 5, 6])}
    return Own(kind).eval(), batch


@pytest.mark.parametrize("kind", OWN)
def test_own_model_stays_what_it_was_and_gets_its_posterior(kind: str, tmp_path: Path) -> None:
    model, batch = own(kind)
    before = model(**batch)

    convert(model, OWN[kind][1])

    assert_close(model(**batch), before, rtol=0, atol=1e-6)
    drawn = answers(families.spread(model), batch)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    cut = {"tokens": batch["tokens"][1:2, :2], "lengths": batch["lengths"][1:2]}
    assert_close(answers(model, cut), drawn[1:2], rtol=0, atol=1e-4)
    kepsvgp.save_pretrained(model, tmp_path)
    loaded = kepsvgp.load_pretrained(tmp_path, model=Own(kind))
    assert torch.equal(answers(loaded, batch), drawn)
    fit_novelty(model, [batch])
    fit_posterior(model, [(batch, torch.tensor([0, 2, 1, 0]))], prior_precision=1.0)
    assert predict(model, batch, num_samples=3).novelty is not None
    assert_close(model(**batch), before, rtol=0, atol=1e-6)


@pytest.fixture
def without_fused_layers() -> Iterator[None]:
    """As torch fuses an encoder layer in evaluation, it reads weights beside their adapters."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("without_fused_layers")
@pytest.mark.parametrize("kind", OWN)
def test_own_model_takes_adapters(kind: str, tmp_path: Path) -> None:
    model, batch = own(kind)
    targets, layers = OWN[kind]
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    before = adapted(**batch)
    names = [f"base_model.model.{name}" for name in layers] if layers != 1 else layers

    convert(adapted, names)

    assert_close(adapted(**batch), before, rtol=0, atol=1e-6)
    drawn = answers(families.spread(adapted), batch)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    with pytest.raises(UserError, match="merge_and_unload"):
        kepsvgp.save_pretrained(adapted, tmp_path)
    merged = adapted.merge_and_unload()
    kepsvgp.save_pretrained(merged, tmp_path)
    loaded = kepsvgp.load_pretrained(tmp_path, model=Own(kind))
    assert_close(answers(loaded, batch), drawn, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("without_checks")
@pytest.mark.parametrize("kind", OWN)
def test_own_model_is_exported(kind: str, tmp_path: Path) -> None:
    model, batch = own(kind)
    families.spread(convert(model, OWN[kind][1]))
    assert_exported(model, batch, {key: value[:3] for key, value in batch.items()}, tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", [*families.EVERY, *OWN])
def test_eight_bits_leave_the_posterior_alone(name: str) -> None:
    model, batch = own(name) if name in OWN else families.make(name)
    # narrow, as eight bits take a longer step to see a difference, over which networks bend
    families.spread(convert(model.eval(), OWN[name][1] if name in OWN else 1), 1e-3)
    fit_novelty(model, [batch])

    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)

    kinds = {type(part) for part in small.modules()}
    assert torch.ao.nn.quantized.dynamic.Linear in kinds
    (first,), (second,) = (converted_layers(each).values() for each in (model, small))
    kept = second.kep.state_dict()
    assert kept.keys() == first.kep.state_dict().keys()
    assert all(torch.equal(kept[name], value) for name, value in first.kep.state_dict().items())
    drawn = answers(small, batch)
    assert 0 < (drawn - answers(model, batch)).abs().max() < 0.05
    assert predict(small, batch, num_samples=2).novelty is not None


def test_guide_has_the_table_of_what_is_tested_here() -> None:
    marks = {name: ["✓"] * 7 for name in (*families.EVERY, *OWN)}
    for name in WITHOUT_GRAPH:
        marks[name][5] = "refused"
    assert guide.table_of_models(beside="timm") == marks
