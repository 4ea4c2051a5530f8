import pytest
import torch
from torch.testing import assert_close

from kepsvgp.maths import gauss_newton

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_likelihood_root_is_one_of_the_hessian_of_the_cross_entropy(classes) -> None:
    logits = randn(5, classes)
    root = gauss_newton.likelihood_root(logits)
    for row, each in zip(logits, root, strict=True):
        hessian = torch.autograd.functional.hessian(
            lambda z: torch.nn.functional.cross_entropy(z, torch.tensor(0)), row
        )
        assert_close(each @ each.T, hessian, **EXACT)


def test_saturated_logits_have_no_information_and_no_nan() -> None:
    root = gauss_newton.likelihood_root(torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float64))
    assert_close(root, torch.zeros_like(root))


def test_matrix_is_the_hessian_of_a_linear_model() -> None:
    jacobian, start = randn(11, 3, 5), randn(11, 3, seed=1)
    labels = torch.arange(11) % 3
    point = randn(5, seed=2)

    def loss(v: torch.Tensor) -> torch.Tensor:
        logits = start + jacobian @ v
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    expected = torch.autograd.functional.hessian(loss, point)
    found = gauss_newton.matrix(jacobian.unsqueeze(2), start + jacobian @ point)
    assert_close(found[0], expected, **EXACT)


def test_blocks_are_those_of_the_whole_matrix() -> None:
    jacobian, logits = randn(7, 3, 2, 5), randn(7, 3, seed=1)
    whole = gauss_newton.matrix(jacobian.flatten(2).unsqueeze(2), logits)[0]
    blocks = gauss_newton.matrix(jacobian, logits)
    assert_close(blocks[0], whole[:5, :5], **EXACT)
    assert_close(blocks[1], whole[5:, 5:], **EXACT)


@pytest.mark.parametrize("tau", [1e-3, 1.0, 1e3])
def test_factor_is_lower_triangular_and_gives_the_covariance(tau) -> None:
    rows = randn(4, 7, 5)
    matrix = rows.mT @ rows
    factor = gauss_newton.covariance_factor(matrix, tau)
    assert_close(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    eye = torch.eye(5, dtype=torch.float64)
    assert_close(factor @ factor.mT, torch.linalg.inv(matrix + tau * eye), **EXACT)


@pytest.mark.parametrize("where", ["zero", "mode", "anywhere"])
def test_evidence_is_that_of_a_linear_gaussian_model_around_any_mean(where) -> None:
    """For a Gaussian likelihood the expansion is exact."""
    design, y = randn(13, 4), randn(13, seed=1)
    gram, eye = design.T @ design, torch.eye(4, dtype=torch.float64)
    zero = torch.zeros(13, dtype=torch.float64)
    for tau in (0.3, 2.0):
        covariance = design @ design.T / tau + torch.eye(13, dtype=torch.float64)
        exact = torch.distributions.MultivariateNormal(zero, covariance).log_prob(y)
        mode = torch.linalg.solve(gram + tau * eye, design.T @ y)
        mean = {"zero": 0 * mode, "mode": mode, "anywhere": randn(4, seed=2)}[where]
        error = y - design @ mean
        at_mean = torch.distributions.Normal(0.0, 1.0).log_prob(error).sum()
        found = gauss_newton.log_evidence(gram[None], tau, mean[None], (design.T @ error)[None])
        assert_close(at_mean + found, exact, **EXACT)


def test_gradient_is_autograd_s() -> None:
    jacobian, start, labels = randn(11, 3, 5), randn(11, 3, seed=1), torch.arange(11) % 3
    v = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(start + jacobian @ v, labels, reduction="sum")
    (expected,) = torch.autograd.grad(-loss, v)
    found = gauss_newton.likelihood_gradient(jacobian.unsqueeze(2), start, labels)
    assert_close(found[0], expected, **EXACT)


def test_effective_dimension_is_the_trace_of_the_hat_matrix() -> None:
    design = randn(13, 4)
    gram = design.T @ design
    eye = torch.eye(4, dtype=torch.float64)
    expected = torch.linalg.solve(gram + 0.7 * eye, gram).trace()
    found = gauss_newton.effective_dimension(torch.linalg.eigvalsh(gram), 0.7)
    assert_close(found, expected, **EXACT)


def test_logit_covariance_is_that_of_draws_of_v() -> None:
    jacobian = randn(3, 2, 2, 5)
    rows = randn(2, 7, 5, seed=1)
    factor = gauss_newton.covariance_factor(rows.mT @ rows, 0.5)
    whole = torch.block_diag(*factor)
    flat = jacobian.flatten(2)
    expected = flat @ whole @ whole.T @ flat.mT
    assert_close(gauss_newton.logit_covariance(jacobian, factor), expected, **EXACT)
