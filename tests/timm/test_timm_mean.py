"""timm's attention that stays as it is, as the mean function of a pair of GPs, in every family."""

from pathlib import Path

import guide
import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp import KEPAttention
from kepsvgp.conversion.probe import answer

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 2}
WINDOWS = {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (2, 2)}
FAMILIES = {
    "vit": ("vit_tiny_patch16_224", SMALL),
    "qk-norm": ("vit_tiny_patch16_224", SMALL | {"qk_norm": True}),
    "deit": ("deit_tiny_distilled_patch16_224", SMALL),
    "eva-02": ("eva02_tiny_patch14_224", SMALL | {"embed_dim": 16}),
    "beit": ("beit_base_patch16_224", SMALL),
    "swin": ("swin_tiny_patch4_window7_224", WINDOWS),
}


def answers(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return kepsvgp.predict(model, images, num_samples=2, generator=generator).probs


def make(family: str) -> tuple[nn.Module, torch.Tensor, dict]:
    """A model that answers to its input, as tiny random ones hardly do, and images for it."""
    torch.manual_seed(0)
    name, arguments = FAMILIES[family]
    arguments = arguments | {"num_classes": 3}
    model = timm.create_model(name, **arguments).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.5)
    return model, torch.randn(4, 3, arguments["img_size"], arguments["img_size"]), arguments


def spread(model: nn.Module) -> None:
    """Makes draws that matter."""
    (layer,) = (module for module in model.modules() if isinstance(module, KEPAttention))
    layer.set_factor(5.0 * torch.eye(layer.rank).expand(layer.num_heads, layer.rank, -1, -1))
    with torch.no_grad():
        layer.to_dual.weight.normal_()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_stays_what_it_was_and_gets_its_posterior(family: str, tmp_path: Path) -> None:
    model, images, arguments = make(family)
    before = model(images)

    kepsvgp.convert(model)

    assert torch.equal(model(images), before)
    spread(model)
    drawn = answers(model, images)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    assert torch.equal(model(images), before)
    assert answer(model) is not None
    kepsvgp.save_pretrained(model, tmp_path, model_args=arguments)
    assert torch.equal(answers(kepsvgp.load_pretrained(tmp_path), images), drawn)
    kepsvgp.fit_novelty(model, [images])
    kepsvgp.fit_posterior(model, [(images, torch.tensor([0, 2, 1, 0]))], prior_precision=1.0)
    assert kepsvgp.predict(model, images, num_samples=3).novelty is not None
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_adapters(family: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, images, arguments = make(family)
    # of these timm uses the weight of `qkv` and passes by its adapters
    maps = ["fc2"] if family in ("eva-02", "beit") else ["qkv", "fc2"]
    config = peft.LoraConfig(r=2, target_modules=maps, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    before = adapted(images)

    kepsvgp.convert(adapted)

    assert torch.equal(adapted(images), before)
    spread(adapted)
    drawn = answers(adapted, images)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    merged = adapted.merge_and_unload()
    kepsvgp.save_pretrained(merged, tmp_path, model_args=arguments)
    assert_close(answers(kepsvgp.load_pretrained(tmp_path), images), drawn, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exported(family: str, tmp_path: Path) -> None:
    model, images, _ = make(family)
    spread(kepsvgp.convert(model))
    generator = torch.Generator().manual_seed(0)

    path = kepsvgp.export(model, tmp_path / "graph.pt2", images, num_samples=2, generator=generator)

    graph = torch.export.load(path).module()
    for each in (images, images[:3]):
        assert_close(graph(inputs=each)[0], answers(model, each), rtol=0, atol=1e-3)


def test_guide_has_the_table_of_what_is_tested_here() -> None:
    marks = {f"timm {family}": ["✓"] * 6 + [""] for family in FAMILIES}
    assert guide.table_of_models(only="timm") == marks
