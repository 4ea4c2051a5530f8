import importlib
import math
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.errors import UserError

pytest.importorskip("gpytorch")
from kepsvgp.models.svdkl import AdditiveGridGP

BATCH, DIM, FEATURE, CLASS, GRID = 7, 5, 11, 3, 16


@pytest.fixture
def head(generator: torch.Generator) -> AdditiveGridGP:
    torch.manual_seed(0)
    head = AdditiveGridGP(DIM, CLASS, num_features=FEATURE, grid_size=GRID).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator).double()
    return head


def data(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)


def test_draws_have_gpytorch_s_marginals(head: AdditiveGridGP, generator) -> None:
    head.eval()
    x = data(generator)
    num_samples = 4_000
    logits = head(x, num_samples=num_samples, generator=generator)

    marginal = head.gp(torch.tanh(head.to_features(x)).mT.unsqueeze(-1))
    mean = head.mixing(marginal.mean.mT)
    variance = marginal.variance.mT @ head.mixing.weight.square().mT
    assert ((logits.mean(0) - mean).abs() < 5 * (variance / num_samples).sqrt()).all()
    error = (logits.var(0) - variance).abs()
    assert (error < 5 * variance * math.sqrt(2 / num_samples)).all()


def test_draws_do_not_depend_on_the_batch(head: AdditiveGridGP, generator) -> None:
    head.eval()
    x = data(generator)

    def draw(part: Tensor) -> Tensor:
        return head(part, num_samples=4, generator=torch.Generator().manual_seed(3))

    together = draw(x)
    assert together.shape == (4, BATCH, CLASS)
    assert_close(torch.cat([draw(one) for one in x.split(1)], dim=1), together)
    assert_close(torch.cat([draw(x[:2]), draw(x[2:])], dim=1), together)
    # and features that have samples already keep them
    assert_close(draw(x.expand(4, BATCH, DIM)), together)


def test_kl_matches_its_formula_with_gpytorch_s_prior(head: AdditiveGridGP) -> None:
    strategy = head.gp.variational_strategy
    q, p = strategy.variational_distribution, strategy.prior_distribution
    k, s, m = p.covariance_matrix, q.covariance_matrix, q.mean.unsqueeze(-1)
    # ½ (tr K⁻¹(S + m mᵀ) − M + log|K| − log|S|)
    trace = torch.linalg.solve(k, s + m @ m.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    # |S| = |L|², as S itself is near singular
    factor = strategy._variational_distribution.chol_variational_covar.tril()
    log_dets = torch.linalg.slogdet(k).logabsdet - 2 * torch.linalg.slogdet(factor).logabsdet
    expected = 0.5 * (trace - GRID + log_dets).sum()

    assert_close(head.penalties().kl, expected)


def test_every_parameter_receives_a_gradient(head: AdditiveGridGP, generator) -> None:
    head.train()
    (head(data(generator)).square().sum() + head.penalties().kl).backward()

    assert not [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()]


def test_training_passes_have_a_draw_for_every_example(head: AdditiveGridGP, generator) -> None:
    head.train()
    twice = data(generator)[:1].repeat(2, 1)

    first, second = head(twice, generator=generator)

    assert not torch.equal(first, second)


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.delitem(sys.modules, "kepsvgp.models.svdkl")

    with pytest.raises(UserError, match=r"kepsvgp\[gp\]"):
        importlib.import_module("kepsvgp.models.svdkl")


def test_head_starts_from_the_logits_of_a_linear_one(generator: torch.Generator) -> None:
    linear = torch.nn.Linear(DIM, CLASS).double()
    head = AdditiveGridGP(DIM, CLASS, num_features=FEATURE, grid_size=GRID).double()
    head.start_from(linear, scale=4.0, spread=0.1)
    x = data(generator)

    marginal = head.eval().gp(torch.tanh(head.to_features(x)).mT.unsqueeze(-1))

    # a linear function is interpolated exactly, up to the float32 of the grid
    expected = 4.0 * torch.tanh(linear(x) / 4.0)
    assert_close(head.mixing(marginal.mean.mT), expected, rtol=1e-4, atol=1e-5)
    # GPs of the prior, scaled: M/2 (s² − 1 − log s²) each, and what a line costs under the prior
    shrunk = CLASS * GRID / 2 * (0.01 - 1 - math.log(0.01))
    assert shrunk < head.penalties().kl < shrunk + 10 * CLASS
