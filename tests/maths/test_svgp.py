import math
from typing import NamedTuple

import pytest
import reference
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from kepsvgp.maths import ksvd, svgp

HEAD, TOKEN, FEATURE, RANK, VALUE = 3, 11, 7, 5, 13


class Inducing(NamedTuple):
    v_mean: Tensor
    v_tril: Tensor


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def inducing(generator: torch.Generator) -> Inducing:
    raw = normal(generator, HEAD, VALUE, RANK, RANK)
    return Inducing(normal(generator, HEAD, RANK, VALUE), svgp.lower_cholesky(raw))


def test_lower_cholesky_is_triangular_with_a_positive_diagonal(inducing: Inducing) -> None:
    assert (inducing.v_tril.triu(1) == 0).all()
    assert (inducing.v_tril.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_inducing_kl_is_that_of_the_paper_s_inducing_variables(
    inducing: Inducing, generator: torch.Generator, scale: float
) -> None:
    """u = Λ v, q(u) = N(Λ m, Λ S Λ), p(u) = N(0, Λ²), whatever Λ is and however it is scaled."""
    log_lambda = normal(generator, HEAD, RANK) + math.log(scale)
    lam = torch.diag_embed(log_lambda.exp()).unsqueeze(1)
    u_mean = svgp.unwhiten(log_lambda, inducing.v_mean)
    q = MultivariateNormal(u_mean.mT, scale_tril=lam @ inducing.v_tril)
    p = MultivariateNormal(torch.zeros_like(u_mean.mT), scale_tril=lam)

    expected = kl_divergence(q, p).sum()
    assert_close(svgp.inducing_kl(*inducing), expected, rtol=1e-9, atol=1e-9)


def test_draws_have_the_moments_of_q(inducing: Inducing, generator: torch.Generator) -> None:
    num = 10_000
    u = svgp.sample_inducing(inducing.v_mean, inducing.v_tril, num, generator=generator)

    covariance = inducing.v_tril @ inducing.v_tril.mT
    variance = covariance.diagonal(dim1=-2, dim2=-1).mT
    # 5 standard errors leave about 1e-4 for a false alarm over all entries
    error = (u.mean(0) - inducing.v_mean).abs()
    assert (error <= 5 * (variance / num).sqrt()).all()
    centred = u - inducing.v_mean
    actual = torch.einsum("n h i v, n h j v -> h v i j", centred, centred) / num
    # Var of a product of Gaussians: Σᵢᵢ Σⱼⱼ + Σᵢⱼ²
    scale = covariance.diagonal(dim1=-2, dim2=-1)
    spread = (scale[..., :, None] * scale[..., None, :] + covariance.square()) / num
    assert ((actual - covariance).abs() <= 5 * spread.sqrt()).all()


def test_values_have_independent_noise(inducing: Inducing, generator: torch.Generator) -> None:
    num = 10_000
    u = svgp.sample_inducing(inducing.v_mean, inducing.v_tril, num, generator=generator)
    first, second = (u - inducing.v_mean)[:, 0, 0, :2].unbind(-1)
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert correlation.abs() < 5 / num**0.5


def test_posterior_equals_the_map_of_the_moments_of_v(
    inducing: Inducing, generator: torch.Generator
) -> None:
    scores = normal(generator, HEAD, TOKEN, RANK)
    q = svgp.posterior(scores, *inducing)
    for head in range(HEAD):
        gain = scores[head]
        for value in range(VALUE):
            tril = inducing.v_tril[head, value]
            assert_close(q.mean[head, :, value], gain @ inducing.v_mean[head, :, value])
            factor = q.factor[head, value]
            assert_close(factor @ factor.mT, gain @ tril @ tril.mT @ gain.mT)


def kernel_pair(generator: torch.Generator) -> Tensor:
    # more features than tokens: the kernel has full rank, so a truncation leaves a residual
    q, k = normal(generator, TOKEN, 2 * TOKEN), normal(generator, TOKEN, 2 * TOKEN)
    return ksvd.attention_kernel(q, k)


@pytest.mark.parametrize("branch", ["e", "r"])
def test_pair_posterior_with_exact_scores_is_the_svgp_posterior(
    generator: torch.Generator, branch: str
) -> None:
    """With scores from the exact SVD the layer's posterior is that of kernel-eigen features."""
    kernel = kernel_pair(generator)
    svd = ksvd.exact_svd(kernel, RANK)
    symmetric = kernel @ kernel.mT if branch == "e" else kernel.mT @ kernel
    vectors = svd.left if branch == "e" else svd.right
    u_mean = normal(generator, RANK)
    u_tril = svgp.lower_cholesky(normal(generator, RANK, RANK))
    u_cov = u_tril @ u_tril.mT

    # E = H_e Λ, the scores at the solution
    scores = vectors * svd.values
    v_mean, v_tril = u_mean / svd.values, u_tril / svd.values[:, None]
    ours = svgp.posterior(scores[None], v_mean[None, :, None], v_tril[None, None])
    mean, factor = ours.mean[0, :, 0], ours.factor[0, 0]

    truncated = reference.kernel_eigen_posterior(
        symmetric, vectors, svd.values.square(), u_mean, u_cov, residual=False
    )
    assert_close(mean, truncated.mean)
    assert_close(factor @ factor.mT, truncated.covariance)
    # the regular SVGP posterior with K_XZ = H Λ², K_ZZ = Λ² is the one with the residual
    regular = reference.svgp_posterior(
        symmetric,
        vectors * svd.values.square(),
        torch.diag(svd.values.square()),
        u_mean,
        u_cov,
    )
    full = reference.kernel_eigen_posterior(symmetric, vectors, svd.values.square(), u_mean, u_cov)
    assert_close(regular.mean, full.mean)
    assert_close(regular.covariance, full.covariance)
    residual = symmetric - (vectors * svd.values.square()) @ vectors.mT
    assert residual.norm() > 1e-3
    assert_close(full.covariance - truncated.covariance, residual)


def test_residual_vanishes_when_all_singular_values_are_kept(generator: torch.Generator) -> None:
    kernel = kernel_pair(generator)
    svd = ksvd.exact_svd(kernel, TOKEN)
    u_mean, u_cov = normal(generator, TOKEN), torch.eye(TOKEN, dtype=torch.float64)
    arguments = (kernel @ kernel.mT, svd.left, svd.values.square(), u_mean, u_cov)

    full = reference.kernel_eigen_posterior(*arguments)
    truncated = reference.kernel_eigen_posterior(*arguments, residual=False)
    assert_close(full.covariance, truncated.covariance)


def test_svgp_with_inducing_points_at_the_data_is_the_exact_gp(
    generator: torch.Generator,
) -> None:
    """With Z = X and the optimal q(u), the sparse posterior at X is the exact one."""
    points = normal(generator, TOKEN, FEATURE)
    k = ksvd.features(points) @ ksvd.features(points).mT + torch.eye(TOKEN, dtype=torch.float64)
    y, noise = normal(generator, TOKEN), 0.3
    exact = reference.gp_posterior(k, k, k, y, noise)

    sparse = reference.svgp_posterior(k, k, k, exact.mean, exact.covariance)
    assert_close(sparse.mean, exact.mean)
    assert_close(sparse.covariance, exact.covariance)


def test_gp_posterior_is_gaussian_conditioning(generator: torch.Generator) -> None:
    """One observation, by hand: mean κ y / (κ + σ²), variance κ − κ² / (κ + σ²)."""
    kappa, sigma2, y = 2.0, 0.5, 3.0
    one = torch.full((1, 1), kappa, dtype=torch.float64)
    posterior = reference.gp_posterior(
        one, one, one, torch.tensor([y], dtype=torch.float64), sigma2
    )
    assert_close(posterior.mean.item(), kappa * y / (kappa + sigma2))
    assert_close(posterior.covariance.item(), kappa - kappa**2 / (kappa + sigma2))
