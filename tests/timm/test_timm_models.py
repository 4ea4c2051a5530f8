from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

import kepsvgp
from kepsvgp.attention import KEPAttention
from kepsvgp.attention.base import fixed_draws, stochastic_layers
from kepsvgp.conversion.probe import answer
from kepsvgp.data import pictures
from kepsvgp.errors import UserError
from kepsvgp.serving import open_folder

# the paper's layer in the place of the module
convert = partial(kepsvgp.convert, mean="zero")

ARGUMENTS = {
    "img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2, "num_classes": 3,
}  # fmt: skip


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **ARGUMENTS)


def images(size: int = 4) -> torch.Tensor:
    return torch.randn(size, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def test_conversion_keeps_the_trained_maps(model: nn.Module) -> None:
    packed = model.blocks[-1].attn.qkv.weight.clone()
    convert(model, rank=4)
    (layer,) = stochastic_layers(model)
    assert isinstance(layer, KEPAttention)
    assert_close(layer.to_qk.weight, packed[: 2 * 12])


def test_converted_model_draws_in_evaluation_where_it_is_asked_to(model: nn.Module) -> None:
    convert(model, rank=4, posterior_scale=1.0)
    model.eval()
    with torch.no_grad():
        mean = model(images())
        assert torch.equal(mean, model(images()))
        with fixed_draws(model, 1):
            assert (model(images()) - mean).abs().max() > 1e-6


def test_prediction_does_not_depend_on_the_batch(model: nn.Module) -> None:
    convert(model, layers="all", rank=4, posterior_scale=1.0)
    whole = kepsvgp.predict(model, images(), num_samples=5, generator=seeded())
    first = kepsvgp.predict(model, images()[:1], num_samples=5, generator=seeded())
    assert whole.epistemic.max() > 0
    assert_close(whole.probs[:1], first.probs)


def test_every_new_parameter_gets_a_gradient_and_training_learns(model: nn.Module) -> None:
    convert(model, rank=4)
    labels = torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        terms = kepsvgp.loss(model(images()), labels, model, num_train=10_000, ksvd_weight=0.1)
        optimizer.zero_grad()
        terms.total.backward()
        if step == 0:
            for name, parameter in stochastic_layers(model)[0].named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.abs().sum() > 0, name
        optimizer.step()
        losses.append(terms.nll.item())
    assert losses[-1] < 0.5 * losses[0]


def test_folder_alone_restores_the_model(model: nn.Module, tmp_path: Path) -> None:
    convert(model, rank=4)
    kepsvgp.save_pretrained(model, tmp_path / "saved", model_args=ARGUMENTS)
    torch.manual_seed(5)
    restored = kepsvgp.load_pretrained(tmp_path / "saved")
    first = kepsvgp.predict(model, images(), generator=seeded())
    second = kepsvgp.predict(restored, images(), generator=seeded())
    assert torch.equal(first.probs, second.probs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mean", ["attention", "zero"])
def test_arguments_that_were_not_saved_are_missed(mean, dtype, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return timm.create_model("vit_tiny_patch16_224", **ARGUMENTS, act_layer="relu")

    torch.manual_seed(0)
    model = kepsvgp.convert(build(), mean=mean).to(dtype)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.5)
    kepsvgp.save_pretrained(model, tmp_path, model_args=ARGUMENTS)

    with pytest.raises(UserError, match="every argument of create_model"):
        kepsvgp.load_pretrained(tmp_path)
    again = kepsvgp.load_pretrained(tmp_path, model=build())
    assert torch.equal(again(images().to(dtype)), model.eval()(images().to(dtype)))
    kepsvgp.save_pretrained(model, tmp_path, model_args=ARGUMENTS | {"act_layer": "relu"})
    kepsvgp.load_pretrained(tmp_path)


@pytest.mark.parametrize("changed", [{}, {"in_chans": 1}, {"img_size": (16, 24)}])
def test_model_is_asked_with_an_image_of_its_own_shape(changed: dict) -> None:
    model = timm.create_model("vit_tiny_patch16_224", **(ARGUMENTS | changed))

    found = answer(model)

    assert found is not None
    assert len(found) == 3
    assert model.training
    assert found == answer(model.eval())


def test_model_of_unknown_inputs_is_not_asked(model: nn.Module, tmp_path: Path) -> None:
    model.patch_embed.img_size = (5, 5)
    assert answer(model) is None
    kepsvgp.save_pretrained(convert(model, rank=4), tmp_path, model_args=ARGUMENTS)
    kepsvgp.load_pretrained(tmp_path)


def test_normalised_queries_are_refused() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **ARGUMENTS, qk_norm=True)
    with pytest.raises(ValueError, match="q_norm"):
        convert(model)


def test_prediction_takes_a_dict_batch(model: nn.Module) -> None:
    convert(model, rank=4, posterior_scale=1.0)
    named = kepsvgp.predict(model, {"x": images()}, generator=seeded())
    assert_close(named.probs, kepsvgp.predict(model, images(), generator=seeded()).probs)


def test_folder_serves_image_files(model: nn.Module, tmp_path: Path) -> None:
    convert(model, rank=4, posterior_scale=1.0)
    kepsvgp.save_pretrained(
        model, tmp_path / "saved", model_args=ARGUMENTS, classes=["cat", "dog", "bird"]
    )
    pixels = torch.randint(256, (30, 41, 3), generator=seeded(), dtype=torch.uint8)
    picture = Image.fromarray(pixels.numpy())
    picture.save(tmp_path / "a.png")

    server = open_folder(tmp_path / "saved", num_samples=3, seed=2)
    found = server.predict([server.load(tmp_path / "a.png")])

    settings = timm.data.resolve_model_data_config(model) | {"input_size": (3, 16, 16)}
    inputs = timm.data.create_transform(**settings, is_training=False)(picture).unsqueeze(0)
    assert_close(
        found.probs, kepsvgp.predict(model, inputs, num_samples=3, generator=seeded()).probs
    )
    assert (server.task, server.classes) == ("image", ("cat", "dog", "bird"))


def test_exported_graph_equals_the_model_at_other_sizes(model: nn.Module, tmp_path: Path) -> None:
    convert(model, rank=4, posterior_scale=1.0)
    path = kepsvgp.export(
        model, tmp_path / "graph.pt2", images(2), num_samples=2, generator=seeded()
    )

    probs, _ = torch.export.load(path).module()(inputs=images(5))

    expected = kepsvgp.predict(model, images(5), num_samples=2, generator=seeded())
    assert_close(probs, expected.probs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(41, 30), (30, 41), (16, 16), (9, 200)])
def test_images_are_prepared_as_timm_does(
    size: tuple[int, int], interpolation: str, crop_mode: str, tmp_path: Path
) -> None:
    noise = torch.randint(256, (*size, 3), generator=seeded(), dtype=torch.uint8)
    picture = Image.fromarray(noise.numpy())
    picture.save(tmp_path / "a.png")
    expected = timm.data.create_transform(
        (3, 16, 16), crop_pct=0.9, interpolation=interpolation, crop_mode=crop_mode,
        mean=(0, 0, 0), std=(1, 1, 1),
    )(picture)  # fmt: skip

    found = pictures.read_middle(
        tmp_path / "a.png", (16, 16), (17, 17), filtered=interpolation, squash=crop_mode == "squash"
    )

    assert_close(torch.from_numpy(found.copy()) / 255, expected)


def test_image_of_one_channel_is_served(tmp_path: Path) -> None:
    arguments = ARGUMENTS | {"in_chans": 1, "img_size": (16, 24)}
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    convert(model, rank=4)
    kepsvgp.save_pretrained(model, tmp_path / "saved", model_args=arguments)
    Image.new("RGB", (40, 50), (200, 10, 30)).save(tmp_path / "a.png")

    server = open_folder(tmp_path / "saved", num_samples=2)

    assert server.load(tmp_path / "a.png").shape == (1, 16, 24)
    assert len(server.predict([server.load(tmp_path / "a.png")])) == 1


def test_hybrid_model_is_served(tmp_path: Path) -> None:
    """Its patches come from convolutions, behind which there is no map."""
    arguments = {"depth": 2, "num_classes": 3, "img_size": 64}
    model = timm.create_model("vit_base_mci_224", **arguments)
    convert(model, rank=4)
    kepsvgp.save_pretrained(model, tmp_path / "saved", model_args=arguments)
    Image.new("RGB", (80, 90), (200, 10, 30)).save(tmp_path / "a.png")

    server = open_folder(tmp_path / "saved", num_samples=2)

    assert server.load(tmp_path / "a.png").shape == (3, 64, 64)
