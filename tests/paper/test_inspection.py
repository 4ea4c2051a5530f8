import pytest
import torch

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.config.sections import ModelConfig
from kepsvgp.maths import svgp
from kepsvgp.methods.kep import KepConfig
from kepsvgp.models import ImageShape, TextShape, build_model
from kepsvgp.paper.inspection import inspect_model
from kepsvgp.paper.kernels import factored_svd, layer_features

SMALL = ModelConfig(depth=2, dim=12, num_heads=3, mlp_dim=12, patch_size=2, kep=KepConfig(rank=2))


def image_batches(count: int = 2, generator=None):
    for start in range(0, 5 * count, 5):
        images = torch.randn(5, 1, 8, 8, generator=generator)
        yield images, torch.zeros(5, dtype=torch.long), torch.arange(start, start + 5)


def kep_model() -> tuple[torch.nn.Module, KEPAttention]:
    torch.manual_seed(0)
    model = build_model(SMALL, ImageShape(1, 8, 8), 10)
    layer = model.blocks[-1].attention
    assert isinstance(layer, KEPAttention)
    return model, layer


def input_of(layer: KEPAttention, model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What a layer is given when the model sees these images."""
    seen = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.eval()(images)
    handle.remove()
    return seen[0]


def test_inspection_names_every_layer_and_counts_examples(generator) -> None:
    model, _ = kep_model()

    found = inspect_model(model, image_batches(generator=generator), split="test")

    assert found.examples == 10
    assert [layer.kind for layer in found.layers] == ["softmax", "kep"]
    softmax, kep = found.layers
    assert len(softmax.singular_values) == 16
    assert sum(softmax.singular_values) == pytest.approx(1)
    assert softmax.rank is None
    assert softmax.posterior is None
    # the rank of a kernel is at most the width of a head
    assert len(kep.singular_values) == 4
    assert kep.explained == pytest.approx(sum(kep.singular_values[:2]))
    assert kep.alignment is not None
    assert len(kep.alignment.left) == 2


def test_inspection_kl_of_heads_adds_up_to_the_layer_s(generator) -> None:
    model, layer = kep_model()

    kep = inspect_model(model, image_batches(generator=generator), split="test").layers[1]

    whole = svgp.inducing_kl(layer.v_mean, svgp.lower_cholesky(layer.v_tril_raw))
    assert kep.posterior is not None
    assert sum(kep.posterior.kl) == pytest.approx(whole.item(), rel=1e-5)
    assert kep.posterior.scale == pytest.approx([0.1] * 3, rel=1e-5)


def test_inspection_noise_is_that_of_draws(generator) -> None:
    model, layer = kep_model()
    batch = list(image_batches(1, generator))
    kep = inspect_model(model, batch, split="test").layers[1]

    with torch.no_grad():
        pair = layer.scores(input_of(layer, model, batch[0][0]))
        v_tril = svgp.lower_cholesky(layer.v_tril_raw)
        v = svgp.sample_inducing(layer.v_mean, v_tril, 1000, generator=generator)
        # (draw batch head token value) for either branch
        drawn = [torch.einsum("bhrn,dhrv->dbhnv", s, v) for s in (pair.e, pair.r)]
    variance = sum(d.var(dim=0).sum(dim=(0, 2, 3)) for d in drawn)
    energy = sum(d.mean(dim=0).square().sum(dim=(0, 2, 3)) for d in drawn)

    assert kep.posterior is not None
    noise = torch.tensor(kep.posterior.noise)
    # 1,000 draws: a relative error of about 1/√2000 ≈ 2 % in each standard deviation, less in sums
    torch.testing.assert_close(noise, (variance / (variance + energy)).sqrt(), rtol=0.05, atol=0)


def test_inspection_does_not_depend_on_batches(generator) -> None:
    model, _ = kep_model()
    images = torch.randn(6, 1, 8, 8, generator=generator)
    labels, index = torch.zeros(6, dtype=torch.long), torch.arange(6)
    whole = [(images, labels, index)]
    parts = [(images[:2], labels[:2], index[:2]), (images[2:], labels[2:], index[2:])]

    one, other = (inspect_model(model, b, split="test").model_dump() for b in (whole, parts))

    for a, b in zip(one["layers"], other["layers"], strict=True):
        assert a["singular_values"] == pytest.approx(b["singular_values"], rel=1e-5)
    assert one["layers"][1]["overlap"] == pytest.approx(other["layers"][1]["overlap"], rel=1e-4)
    assert one["layers"][1]["posterior"]["noise"] == pytest.approx(
        other["layers"][1]["posterior"]["noise"], rel=1e-4
    )


def test_inspection_leaves_the_model_as_it_was(generator) -> None:
    model, layer = kep_model()
    model.train()

    inspect_model(model, image_batches(1, generator), split="test")

    assert model.training
    assert not layer._forward_pre_hooks


def test_inspection_reads_blocks_of_whole_heads(generator) -> None:
    model, layer = kep_model()
    batch = list(image_batches(1, generator))
    narrow = inspect_model(model, batch, split="test").layers[1]
    layer.set_factor(torch.eye(4).expand(3, 1, 4, 4) * 0.1)

    wide = inspect_model(model, batch, split="test").layers[1]

    assert wide.posterior is not None
    assert narrow.posterior is not None
    for name, values in wide.posterior.model_dump().items():
        assert values == pytest.approx(getattr(narrow.posterior, name), rel=1e-5)


def test_inspection_tells_the_size_of_the_scores(generator) -> None:
    model, layer = kep_model()
    batch = list(image_batches(1, generator))
    with torch.no_grad():
        pair = layer.scores(input_of(layer, model, batch[0][0]))
    expected = torch.cat([pair.e, pair.r], dim=-1).square().mean(dim=(0, 2, 3)).sqrt()

    kep = inspect_model(model, batch, split="test").layers[1]

    assert kep.posterior is not None
    assert kep.posterior.scores == pytest.approx(expected.tolist(), rel=1e-4)


def test_inspection_finds_scores_no_better_than_random_ones(generator) -> None:
    torch.manual_seed(0)
    config = SMALL.model_copy(update={"dim": 48, "kep": KepConfig(rank=2, projection="free")})
    model = build_model(config, ImageShape(1, 8, 8), 10)

    kep = inspect_model(model, image_batches(4, generator), split="test").layers[1]

    assert any("its left scores span" in finding for finding in kep.findings)


def test_inspection_praises_exact_singular_directions(generator) -> None:
    torch.manual_seed(0)
    config = SMALL.model_copy(update={"depth": 1, "kep": KepConfig(rank=2, projection="free")})
    model = build_model(config, ImageShape(1, 8, 8), 10)
    layer = model.blocks[0].attention
    assert isinstance(layer, KEPAttention)
    batch = next(image_batches(1, generator))
    # one example, whose directions are Φ_qᵀ-images of the exact right vectors: W_e = Φ_kᵀ H_r
    one = (batch[0][:1], batch[1][:1], batch[2][:1])
    with torch.no_grad():
        features = layer_features(layer, input_of(layer, model, one[0]))
        svd = factored_svd(*features)
        layer.w_e.copy_((features.k.mT @ svd.right[..., :2])[0])
        layer.w_r.copy_((features.q.mT @ svd.left[..., :2])[0])

    report = inspect_model(model, [one], split="test").layers[0]

    assert report.overlap is not None
    assert report.overlap.left == pytest.approx(1, abs=1e-5)
    assert report.overlap.right == pytest.approx(1, abs=1e-5)
    assert report.alignment is not None
    assert report.alignment.left == pytest.approx([1, 1], abs=1e-4)
    assert not any("scores" in finding for finding in report.findings)


def test_inspection_of_texts_of_different_lengths(generator) -> None:
    torch.manual_seed(0)
    config = SMALL.model_copy(update={"kep_layers": "all", "kep": KepConfig(rank=3)})
    model = build_model(config, TextShape(30), 2)
    tokens = torch.randint(30, (4, 9), generator=generator)
    mask = torch.arange(9) < torch.tensor([9, 4, 2, 1]).unsqueeze(-1)
    batch = ({"tokens": tokens, "mask": mask}, torch.zeros(4, dtype=torch.long), torch.arange(4))

    found = inspect_model(model, [batch], split="test")

    assert [layer.kind for layer in found.layers] == ["kep", "kep"]
    for layer in found.layers:
        assert sum(layer.singular_values) == pytest.approx(1)
        assert torch.tensor(layer.singular_values).isfinite().all()
