import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from kepsvgp.attention import sgpa
from kepsvgp.attention.base import use_draws
from kepsvgp.ops import dispatch, noise, slices
from kepsvgp.training.objective import loss

# every size distinct and prime: a swapped axis cannot pass
BATCH, HEAD, TOKEN, INDUCING, FEATURE = 2, 3, 7, 5, 11


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def lower(raw: Tensor) -> Tensor:
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


@pytest.fixture
def case(generator: torch.Generator) -> dict[str, Any]:
    return {
        "queries": normal(generator, BATCH, HEAD, TOKEN, FEATURE) / 2,
        "values": normal(generator, BATCH, HEAD, TOKEN, FEATURE),
        "inducing": sgpa.Inducing(
            normal(generator, HEAD, INDUCING, FEATURE) / 2,
            normal(generator, HEAD, INDUCING, FEATURE),
            lower(normal(generator, HEAD, FEATURE, INDUCING, INDUCING) / 2),
        ),
        "log_scale": normal(generator, HEAD) / 2,
        "log_lengthscale": normal(generator, HEAD, FEATURE) / 4,
    }


@pytest.mark.parametrize("kernel", ["exponential", "ard"])
def test_marginals_match_the_authors_numbers(golden: Path, kernel: sgpa.Kernel) -> None:
    with np.load(golden / f"sgpa_{kernel}.npz") as arrays:
        g = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    dim = g["x"].shape[-1]
    w_q, w_v = g["qv_weight"].split(dim)
    raw = g["s_sqrt_ltri"][0]
    factor = raw.tril(-1) + torch.diag_embed(g["log_s_sqrt_diag"][0].exp())

    actual = sgpa.marginals(
        (g["x"] @ w_q.mT).unsqueeze(1),
        (g["x"] @ w_v.mT).unsqueeze(1),
        sgpa.Inducing(g["inducing_keys"][0] @ w_q.mT, g["v"][0], factor),
        g["log_sf"][0],
        g["log_ls"],
        kernel=kernel,
        jitter=float(g["jitter"]),
    )

    assert_close(actual.mean.squeeze(1), g["mean"], rtol=1e-8, atol=1e-8)
    assert_close(actual.variance.squeeze(1).sqrt(), g["std"], rtol=1e-8, atol=1e-8)
    assert_close(actual.kl, g["kl"].reshape(()), rtol=1e-8, atol=1e-8)


def kernel_by_loops(a: Tensor, b: Tensor, scale: Tensor, length: Tensor, kernel: str) -> Tensor:
    out = torch.empty(len(a), len(b), dtype=a.dtype)
    for i, left in enumerate(a / length):
        for j, right in enumerate(b / length):
            exponent = left @ right if kernel == "exponential" else -((left - right) ** 2).sum() / 2
            out[i, j] = scale * torch.exp(exponent)
    return out


@pytest.mark.parametrize("kernel", ["exponential", "ard"])
def test_marginals_match_dense_formulas_head_by_head(
    case: dict[str, Any], kernel: sgpa.Kernel
) -> None:
    actual = sgpa.marginals(**case, kernel=kernel, jitter=0.0)

    kl = torch.zeros((), dtype=torch.float64)
    for h in range(HEAD):
        beta, v_beta, factor = (t[h] for t in case["inducing"])
        scale, length = case["log_scale"][h].exp(), case["log_lengthscale"][h].exp()
        k_bb = kernel_by_loops(beta, beta, scale, length, kernel)
        for b in range(BATCH):
            q, v = case["queries"][b, h], case["values"][b, h]
            k_qq = kernel_by_loops(q, q, scale, length, kernel)
            k_qb = kernel_by_loops(q, beta, scale, length, kernel)
            nystrom = k_qb @ torch.linalg.inv(k_bb) @ k_qb.mT
            assert_close(actual.mean[b, h], k_qq @ v - nystrom @ v + k_qb @ v_beta)
            whitened = k_qb @ torch.linalg.inv(torch.linalg.cholesky(k_bb)).mT
            for c in range(FEATURE):
                covariance = k_qq - nystrom
                covariance += whitened @ factor[c] @ factor[c].mT @ whitened.mT
                assert_close(actual.variance[b, h, :, c], covariance.diagonal())
            kl += 0.5 * (v * ((k_qq - nystrom) @ v)).sum() / BATCH
        # weights v_β and whitened factors S^½ are q(u) = N(K_ββ v_β, L S Lᵀ), p(u) = N(0, K_ββ)
        chol = torch.linalg.cholesky(k_bb)
        for c in range(FEATURE):
            q_u = MultivariateNormal(k_bb @ v_beta[:, c], scale_tril=chol @ factor[c])
            p_u = MultivariateNormal(torch.zeros(INDUCING, dtype=torch.float64), scale_tril=chol)
            kl += kl_divergence(q_u, p_u)
    assert_close(actual.kl, kl)


@pytest.mark.parametrize("kernel", ["exponential", "ard"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2)])
def test_blocks_of_sequences_give_the_numbers_of_all_at_once(
    case: dict[str, Any],
    kernel: sgpa.Kernel,
    shape: tuple[int, ...],
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (*shape, HEAD, TOKEN, FEATURE)
    case |= {"queries": normal(generator, *sizes) / 2, "values": normal(generator, *sizes)}
    scales = (case["log_scale"], case["log_lengthscale"])
    leaves = [case["queries"], case["values"], *case["inducing"], *scales]
    for leaf in leaves:
        leaf.requires_grad_()

    def outcome() -> tuple[list[Tensor], sgpa.Marginals]:
        result = sgpa.marginals(**case, kernel=kernel, jitter=0.0)
        total = result.mean.square().sum() + result.variance.sqrt().sum() + result.kl
        return list(torch.autograd.grad(total, leaves)), result

    # two sequences a block, the last of five by itself
    monkeypatch.setattr(slices, "BLOCK_BYTES", 2 * 8 * HEAD * TOKEN * FEATURE * INDUCING)
    gradients, actual = outcome()
    monkeypatch.setattr(dispatch, "is_fast", lambda *_: False)
    expected_gradients, expected = outcome()

    assert actual.mean.shape == actual.variance.shape == sizes
    for ours, theirs in zip((*actual, *gradients), (*expected, *expected_gradients), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_layer_takes_batches_and_sequences_without_anything(shape: tuple[int, ...]) -> None:
    layer = sgpa.SGPAttention(8, 2, num_inducing=3).eval()
    assert layer(torch.randn(shape)).shape == shape


def test_cholesky_adds_jitter_until_it_succeeds_and_no_longer() -> None:
    singular = torch.ones(3, 3, dtype=torch.float64)
    factor = sgpa.cholesky(singular - 5e-5 * torch.eye(3, dtype=torch.float64), jitter=1e-6)
    # 1e-6 and 1e-5 leave it indefinite, 1e-4 does not
    expected = singular + (1e-4 - 5e-5) * torch.eye(3, dtype=torch.float64)
    assert_close(factor @ factor.mT, expected)

    with pytest.raises(FloatingPointError, match="positive definite"):
        sgpa.cholesky(torch.full((2, 2), math.nan), jitter=1e-6)


@pytest.fixture
def layer(generator: torch.Generator) -> sgpa.SGPAttention:
    layer = sgpa.SGPAttention(15, 3, num_inducing=INDUCING).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * normal(generator, *parameter.shape)
    return layer


def test_layer_projects_inducing_keys_by_the_rows_of_their_head(
    layer: sgpa.SGPAttention, generator: torch.Generator
) -> None:
    x = normal(generator, BATCH, TOKEN, 15)
    whole = layer.marginals(x)

    w_q, w_v = layer.to_qv.weight.split(15)
    for h, (rows_q, rows_v) in enumerate(zip(w_q.split(5), w_v.split(5), strict=True)):
        alone = sgpa.marginals(
            (x @ rows_q.mT).unsqueeze(1),
            (x @ rows_v.mT).unsqueeze(1),
            sgpa.Inducing(
                (layer.inducing_keys[h] @ rows_q.mT).unsqueeze(0),
                layer.inducing_mean[h : h + 1],
                lower(layer.inducing_tril_raw[h : h + 1]),
            ),
            layer.log_scale[h : h + 1],
            layer.log_lengthscale[h : h + 1],
            kernel="exponential",
            jitter=1e-6,
        )
        assert_close(whole.mean[:, h], alone.mean[:, 0])
        assert_close(whole.variance[:, h], alone.variance[:, 0])


@pytest.mark.parametrize("num_samples", [None, 2])
def test_layer_does_not_see_padding(
    layer: sgpa.SGPAttention, generator: torch.Generator, num_samples: int | None
) -> None:
    layer.train()
    real = normal(generator, BATCH, TOKEN, 15)
    padded = torch.cat([real, 1e3 * normal(generator, BATCH, 4, 15)], dim=1)
    mask = torch.arange(TOKEN + 4).expand(BATCH, -1) < TOKEN

    with use_draws({layer: noise.draw_seeds(num_samples or 1, generator=generator)}):
        alone = layer(real, num_samples=num_samples)
        kl = layer.penalties().sequence_kl
        among_padding = layer(padded, mask, num_samples=num_samples)

    assert_close(among_padding[..., :TOKEN, :], alone)
    assert_close(layer.penalties().sequence_kl, kl)


def test_layer_samples_do_not_depend_on_the_batch(
    layer: sgpa.SGPAttention, generator: torch.Generator
) -> None:
    layer.eval()
    x = normal(generator, BATCH, TOKEN, 15)

    def draw(t: Tensor) -> Tensor:
        return layer(t, num_samples=3, generator=torch.Generator().manual_seed(1))

    together = draw(x)
    assert together.shape == (3, BATCH, TOKEN, 15)
    assert_close(torch.cat([draw(one) for one in x.split(1)], dim=1), together)
    assert not torch.equal(together[0], together[1])
    # and the axis of samples that an earlier layer made is kept
    assert_close(draw(x.expand(3, BATCH, TOKEN, 15)), together)


def test_layer_draws_have_the_marginal_moments(
    layer: sgpa.SGPAttention, generator: torch.Generator
) -> None:
    layer.eval()
    x = normal(generator, 1, 2, 15)
    num_samples = 4_000
    posterior = layer.marginals(x)
    drawn = layer(x, num_samples=num_samples, generator=generator)

    # the output map of a Gaussian: W μ + b, diag W Σ Wᵀ
    weight, bias = layer.to_output.weight, layer.to_output.bias
    mean = posterior.mean.transpose(1, 2).flatten(-2) @ weight.mT + bias
    variance = posterior.variance.transpose(1, 2).flatten(-2) @ weight.square().mT
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / num_samples).sqrt()).all()
    # Var of a Gaussian's sample variance: 2 σ⁴ / n
    error = (drawn.var(0) - variance).abs()
    assert (error < 5 * variance * math.sqrt(2 / num_samples)).all()


def test_layer_gives_every_parameter_a_gradient_and_works_at_size_one() -> None:
    layer = sgpa.SGPAttention(2, 1, num_inducing=2, kernel="ard")
    out = layer(torch.randn(1, 1, 2))
    (out.sum() + layer.penalties().sequence_kl).backward()

    assert out.shape == (1, 1, 2)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_objective_counts_the_kl_of_every_sequence() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = sgpa.SGPAttention(4, 2, num_inducing=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x).mean(-2)

    model = Pooled()
    logits = model(torch.randn(5, 3, 4))
    kl = model.attention._left_behind[0][0]

    # −ELBO / N = mean cross-entropy + mean KL of a sequence, whatever N
    terms = loss(logits, torch.zeros(5).long(), model, num_train=1_000, ksvd_weight=1.0)
    assert_close(terms.total, terms.nll + kl)
    assert_close(terms.kl, 1_000 * kl)


def test_layer_works_in_half_precision() -> None:
    torch.manual_seed(0)
    layer, x = sgpa.SGPAttention(8, 2, num_inducing=3).eval(), torch.randn(2, 5, 8)
    exact = layer.marginals(x).mean
    rounded = copy.deepcopy(layer).bfloat16()
    assert rounded(x.bfloat16()).dtype == torch.bfloat16
    # eight bits of a number, in queries, keys and values
    assert_close(rounded.marginals(x.bfloat16()).mean, exact, rtol=0.1, atol=0.02)


def test_kernels_are_in_single_precision_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = sgpa.SGPAttention(8, 2, num_inducing=3).eval(), torch.randn(2, 5, 8)
    products, matrix = [], sgpa.kernel_matrix

    def watched(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        products.append((a @ b.mT).dtype)
        return matrix(a, b, *args, **kwargs)

    monkeypatch.setattr(sgpa, "kernel_matrix", watched)
    with torch.autocast("cpu", torch.bfloat16):
        layer.marginals(x)
    assert set(products) == {torch.float32}
