"""The blocks of the dual projection against the plain formulas, whatever their size."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.maths import ksvd
from kepsvgp.ops import blocked, blocked_dual

# every size distinct and prime, but for the pairs: queries and keys of two heads
BATCH, PAIR, TOKEN, FEATURE, RANK = 3, 4, 7, 5, 11
SEQUENCE = PAIR * TOKEN * FEATURE * 8
# half a sequence, one, two, all of them in a block
BLOCKS = [SEQUENCE // 2, SEQUENCE, 2 * SEQUENCE, 2**22]


@pytest.fixture(params=BLOCKS)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK_BYTES", request.param)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def inputs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Queries and keys, and coefficients, as the layer has them in memory."""
    qk = normal(generator, BATCH, TOKEN, PAIR, FEATURE).transpose(1, 2)
    dual = normal(generator, BATCH, TOKEN, PAIR, RANK).permute(0, 2, 3, 1)
    return qk.requires_grad_(), dual.requires_grad_()


def some_mask() -> Tensor:
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[0, 4:] = False
    mask[2] = False
    return mask


def by_formulas(qk: Tensor, dual: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """E = Φ_q Φ_kᵀ H_r / n and R = Φ_k Φ_qᵀ H_e / n, with the kernel K formed."""
    real = torch.ones(BATCH, TOKEN, dtype=torch.bool) if mask is None else mask
    phi = qk / qk.norm(dim=-1, keepdim=True) * real[:, None, :, None]
    n = real.sum(dim=-1).clamp_min(1)[:, None, None, None]
    phi_q, phi_k = phi.chunk(2, dim=1)
    h_e, h_r = dual.mT.chunk(2, dim=1)
    kernel = phi_q @ phi_k.mT / n
    scores = torch.cat([kernel @ h_r, kernel.mT @ h_e], dim=1)
    directions = torch.cat([phi_k.mT @ h_r, phi_q.mT @ h_e], dim=1) / n
    return scores.mT, scores.square().sum(dim=(0, 2)), directions


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("used", [(0, 1, 2), (0,), (1,), (2,)])
def test_results_and_gradients_equal_the_kernel_s(
    masked: bool, used: tuple[int, ...], generator: torch.Generator
) -> None:
    qk, dual = inputs(generator)
    mask = some_mask() if masked else None

    both, directions = blocked_dual.dual_scores(qk, dual, mask, with_energy=True)
    ours = both.scores, both.energy, directions
    theirs = by_formulas(qk, dual, mask)

    assert_close(ours, theirs)
    weights = [normal(generator, *theirs[i].shape) for i in used]
    (ours_qk, ours_dual), (theirs_qk, theirs_dual) = (
        torch.autograd.grad([values[i] for i in used], [qk, dual], weights, allow_unused=True)
        for values in (ours, theirs)
    )
    assert_close(ours_qk, theirs_qk)
    assert_close(ours_dual, theirs_dual)


@pytest.mark.usefixtures("block_bytes")
def test_evaluation_has_the_same_scores(generator: torch.Generator) -> None:
    qk, dual = inputs(generator)
    with torch.no_grad():
        both, _ = blocked_dual.dual_scores(qk, dual, some_mask())
    assert both.energy is None
    assert_close(both.scores, by_formulas(qk, dual, some_mask())[0].detach())


def test_second_derivatives_are_right(generator: torch.Generator) -> None:
    qk = normal(generator, 2, 2, 3, 3).requires_grad_()
    dual = normal(generator, 2, 2, 2, 3).requires_grad_()
    mask = torch.tensor([[True, True, False], [True, True, True]])

    def everything(qk: Tensor, dual: Tensor) -> Tensor:
        both, directions = blocked_dual.dual_scores(qk, dual, mask, with_energy=True)
        assert both.energy is not None
        return both.scores.square().sum() + both.energy.sum() + directions.prod()

    assert torch.autograd.gradcheck(everything, (qk, dual))
    assert torch.autograd.gradgradcheck(everything, (qk, dual))


def test_gradients_have_the_layout_of_the_maps(generator: torch.Generator) -> None:
    qk, dual = inputs(generator)
    both, _ = blocked_dual.dual_scores(qk, dual)
    grad_qk, grad_dual = torch.autograd.grad(both.scores.sum(), [qk, dual])
    assert grad_qk.transpose(1, 2).is_contiguous()
    assert grad_dual.permute(0, 3, 1, 2).is_contiguous()


def test_zero_tokens_have_finite_gradients() -> None:
    qk = torch.zeros(1, PAIR, TOKEN, FEATURE, requires_grad=True)
    both, _ = blocked_dual.dual_scores(qk, torch.ones(1, PAIR, RANK, TOKEN))
    both.scores.sum().backward()
    assert qk.grad is not None
    assert qk.grad.isfinite().all()


def test_function_transforms_take_the_plain_formulas(generator: torch.Generator) -> None:
    qk, dual = (t.detach() for t in inputs(generator))

    def total(qk: Tensor, dual: Tensor) -> Tensor:
        both, _ = blocked_dual.dual_scores(qk.unsqueeze(0), dual.unsqueeze(0))
        return both.scores.square().sum()

    by_sequence = torch.func.vmap(torch.func.grad(total))(qk, dual)
    assert_close(by_sequence[1], torch.func.grad(total)(qk[1], dual[1]))


def test_other_feature_maps_take_the_plain_formulas(generator: torch.Generator) -> None:
    linear = ksvd.FeatureMap(base=ksvd.identity, scale=lambda t: torch.ones_like(t[..., 0]))
    qk, dual = inputs(generator)
    both, directions = blocked_dual.dual_scores(qk, dual, None, linear)
    assert_close(both.scores, (qk @ directions).mT)


@pytest.mark.parametrize(("batch", "token"), [(0, TOKEN), (BATCH, 0)])
def test_nothing_gives_nothing(batch: int, token: int) -> None:
    qk = torch.ones(batch, PAIR, token, FEATURE, requires_grad=True)
    dual = torch.ones(batch, PAIR, RANK, token)
    both, directions = blocked_dual.dual_scores(qk, dual, with_energy=True)
    assert both.scores.shape == (batch, PAIR, RANK, token)
    assert_close(directions, torch.zeros(batch, PAIR, FEATURE, RANK))
    assert both.energy is not None
    assert (both.energy == 0).all()
    both.scores.sum().backward()
