import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp.attention.base import fixed_draws
from kepsvgp.models.sngp import RandomFeatureGP, SpectralBound, bound_spectra

BATCH, DIM, FEATURE, CLASS = 7, 5, 13, 3


@pytest.fixture
def head(generator: torch.Generator) -> RandomFeatureGP:
    torch.manual_seed(0)
    return RandomFeatureGP(DIM, CLASS, num_features=FEATURE).double()


def data(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)


def test_features_approximate_the_rbf_kernel(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    num_features = 20_000
    head = RandomFeatureGP(DIM, CLASS, num_features=num_features, lengthscale=0.7).double()
    x = data(generator)

    phi = head.features(x)
    distances = torch.cdist(x, x).square() / (0.7**2 * DIM)

    # each product is a mean of D numbers within ±2, of standard deviation below √2
    error = (phi @ phi.mT - torch.exp(-distances / 2)).abs()
    assert error.max() < 5 * math.sqrt(2 / num_features)


def test_precision_matches_a_loop_over_examples_and_classes(head, generator) -> None:
    x = data(generator)
    head.fit(x.split(3))

    phi = head.features(x)
    p = (phi @ head.weight).softmax(-1)
    for k in range(CLASS):
        precision = torch.eye(FEATURE, dtype=torch.float64)
        for i in range(BATCH):
            precision += p[i, k] * (1 - p[i, k]) * phi[i].outer(phi[i])
        tril = head.precision_tril[k]
        assert_close(tril @ tril.mT, precision)
        assert_close(
            head.variance(phi)[:, k], (phi @ torch.linalg.inv(precision) @ phi.mT).diagonal()
        )


def test_draws_have_the_posterior_mean_and_variance(head, generator) -> None:
    x = data(generator)
    head.fit([x])
    head.eval()
    num_samples = 4_000

    logits = head(x, num_samples=num_samples, generator=generator)
    mean, variance = head.features(x) @ head.weight, head.variance(head.features(x))

    assert ((logits.mean(0) - mean).abs() < 5 * (variance / num_samples).sqrt()).all()
    error = (logits.var(0) - variance).abs()
    assert (error < 5 * variance * math.sqrt(2 / num_samples)).all()
    # without draws, the mean-field approximation
    assert_close(head(x), mean / (1 + math.pi / 8 * variance).sqrt())


def test_unfitted_head_draws_its_mean(head, generator) -> None:
    x = data(generator)
    with fixed_draws(nn.Sequential(head), 2):
        logits = head(x, num_samples=2)

    assert logits.shape == (2, BATCH, CLASS)
    assert torch.equal(logits[0], logits[1])
    assert_close(logits[0], head(x))


@pytest.mark.parametrize("is_fitted", [False, True])
def test_state_is_loaded_whether_fitted_or_not(head, generator, is_fitted) -> None:
    if is_fitted:
        head.fit([data(generator)])
    other = RandomFeatureGP(DIM, CLASS, num_features=FEATURE).double()
    other.fit([data(generator)])

    other.load_state_dict(head.state_dict())

    assert other.is_fitted == is_fitted
    x = data(generator)
    assert_close(other.eval()(x), head.eval()(x))


def test_penalty_is_the_gaussian_prior_s(head) -> None:
    zero = torch.zeros((), dtype=torch.float64)
    prior = torch.distributions.Normal(zero, 1.0)
    constant = -prior.log_prob(zero) * head.weight.numel()

    expected = -prior.log_prob(head.weight).sum() - constant
    assert_close(head.penalties().kl, expected)


@pytest.mark.parametrize(("scale", "expected"), [(10.0, 0.95), (0.01, None)])
def test_spectral_bound_holds_large_weights_and_leaves_small_ones(scale, expected) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(7, 11).double()
    with torch.no_grad():
        layer.weight.mul_(scale)
    before = layer.weight.detach().clone()
    bound_spectra(nn.Sequential(layer), 0.95)
    layer.train()
    for _ in range(50):
        layer.weight  # noqa: B018 (each look is a step of the power iteration)

    if expected is None:
        assert_close(layer.weight, before)
    else:
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), torch.tensor(0.95).double())
        # a bound, not another weight: the direction stays
        assert_close(layer.weight / layer.weight.norm(), before / before.norm())


def test_spectral_bound_follows_a_weight_that_changes_and_has_a_gradient(generator) -> None:
    weight = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    bound = SpectralBound(weight, 0.5).double().train()
    other = torch.randn(5, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        out = bound(other)

    assert_close(torch.linalg.matrix_norm(out, 2), torch.tensor(0.5).double())
    out.sum().backward()
    # at the exact singular vectors the estimate has the derivative of the norm itself
    exact = other.detach().clone().requires_grad_()
    (exact * 0.5 / torch.linalg.matrix_norm(exact, 2)).sum().backward()
    assert_close(other.grad, exact.grad, rtol=1e-5, atol=1e-5)
