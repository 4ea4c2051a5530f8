"""Noise as large as KEP-SVGP's draws, and of nothing else of them."""

import pytest
import torch
from methods.cases import IMAGES, TEXTS, make_batches, make_model
from torch.testing import assert_close

from kepsvgp.attention.noisy import NoisyAttention
from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.inference.linear import kep_layers
from kepsvgp.maths import svgp
from kepsvgp.methods.matched_noise import SAMPLES, noise_scales

TOKEN, DIM, HEAD = 7, 6, 2


@pytest.mark.parametrize("shape", [IMAGES, TEXTS], ids=["images", "texts"])
def test_scale_is_that_of_the_draws(shape) -> None:
    model = make_model(shape, "kep")
    (layer,) = kep_layers(model)
    seen = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args))
    with torch.no_grad():
        for inputs, _, _ in make_batches(shape, 23):
            model(**inputs) if isinstance(inputs, dict) else model(inputs)
        handle.remove()
        x, mask = seen[0]
        # O is linear in v: its columns for unit vectors give the variance without any draws
        unit = torch.eye(layer.v_mean.numel()).unflatten(1, (HEAD, -1, layer.rank)).mT
        zero = torch.zeros(1, *layer.v_mean.shape)
        outs = [layer._read_out(layer.scores(x, mask), v, x.shape[:1]) for v in (*unit, zero[0])]
    factor = torch.block_diag(*svgp.lower_cholesky(layer.v_tril_raw.detach()).flatten(0, 1))
    columns = torch.einsum("i b n c, i j -> j b n c", torch.stack(outs[:-1]) - outs[-1], factor)
    variance = columns.square().sum(dim=0)
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    expected = variance[real].mean(dim=0).sqrt()

    (found,) = noise_scales(model, make_batches(shape, 7)).values()

    # standard deviations from so many draws, which all tokens share
    assert_close(found, expected, rtol=4 / (2 * SAMPLES) ** 0.5, atol=0)


def test_noise_is_added_in_training_and_to_samples_alone() -> None:
    torch.manual_seed(0)
    softmax = SoftmaxAttention(DIM, HEAD)
    layer = NoisyAttention(softmax, DIM)
    layer.noise_scale.copy_(torch.arange(DIM) / 10)
    x = torch.randn(3, TOKEN, DIM)
    mean = softmax(x)

    torch.testing.assert_close(layer.eval()(x), mean)
    generator = torch.Generator().manual_seed(0)
    drawn = layer(x, num_samples=2000, generator=generator) - mean
    assert_close(drawn.std(dim=0), layer.noise_scale.expand_as(mean), rtol=0.15, atol=0)
    # all sequences share the draw of a sample
    assert_close(drawn[:, 0], drawn[:, 1])
    noisy = layer.train()(x)
    assert not torch.allclose(noisy, mean)
    assert layer.penalties().kl == 0
