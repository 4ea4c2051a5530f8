"""timm's attention that stays as it is, as the mean function of a pair of GPs, in every family."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import kepsvgp
from kepsvgp import KEPAttention

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
    return kepsvgp.predict(model, images, num_samples=5, generator=generator).probs


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_stays_what_it_was_and_gets_its_posterior(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, arguments = FAMILIES[family]
    arguments = arguments | {"num_classes": 3}
    model = timm.create_model(name, **arguments).eval()
    images = torch.randn(4, 3, arguments["img_size"], arguments["img_size"])
    # a model that answers to its input: tiny random ones hardly do
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.5)
    before = model(images)

    kepsvgp.convert(model)

    assert torch.equal(model(images), before)
    (layer,) = (module for module in model.modules() if isinstance(module, KEPAttention))
    layer.set_factor(5.0 * torch.eye(layer.rank).expand(layer.num_heads, layer.rank, -1, -1))
    with torch.no_grad():
        layer.to_dual.weight.normal_()
    drawn = answers(model, images)
    assert (drawn - before.softmax(-1)).abs().max() > 1e-3
    assert torch.equal(model(images), before)
    kepsvgp.save_pretrained(model, tmp_path, model_args=arguments)
    assert torch.equal(answers(kepsvgp.load_pretrained(tmp_path), images), drawn)
    kepsvgp.fit_novelty(model, [images])
    kepsvgp.fit_posterior(model, [(images, torch.tensor([0, 2, 1, 0]))], prior_precision=1.0)
    assert kepsvgp.predict(model, images, num_samples=3).novelty is not None
    assert torch.equal(model(images), before)
