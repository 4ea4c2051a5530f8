"""Fast kernels against the plain formulas, whatever the size of the blocks."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.maths import ksvd, svgp
from kepsvgp.ops import dispatch, slices

# every size distinct and prime, but for the pairs: queries and keys of two heads
SAMPLE, BATCH, PAIR, TOKEN, FEATURE, RANK = 2, 3, 4, 7, 5, 11
SEQUENCE = PAIR * TOKEN * FEATURE * 8
# one token, half a sequence, one, two, all of them in a block
BLOCKS = [1, SEQUENCE // 2, SEQUENCE, 2 * SEQUENCE, 2**22]


@pytest.fixture(params=BLOCKS)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "BLOCK_BYTES", request.param)


def some_mask() -> Tensor:
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[0, 4:] = False
    mask[2] = False
    return mask


class Case(NamedTuple):
    fast: Callable[..., tuple[Tensor, ...]]
    """Of the inputs and a mask."""
    plain: Callable[..., tuple[Tensor, ...]]
    layouts: list[tuple[tuple[int, ...], tuple[int, ...]]]
    """Of each input, the shape in memory and the order in which the layer sees its axes."""
    num_results: int = 1

    def inputs(
        self, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> list[Tensor]:
        return [
            torch.randn(shape, generator=generator, dtype=dtype).permute(order).requires_grad_()
            for shape, order in self.layouts
        ]


def scores(t: Tensor, directions: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return dispatch.project(t, directions, mask, with_energy=True)


def plain_scores(t: Tensor, directions: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    found = ksvd.project(t, directions, mask)
    return found.unflatten(1, (2, -1)), ksvd.sum_of_squares(found)


def dual_scores(qk: Tensor, dual: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    both, directions = dispatch.project_dual(qk, dual, mask, with_energy=True)
    return *both, directions


def plain_dual_scores(qk: Tensor, dual: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """E = Φ_q Φ_kᵀ H_r / n and R = Φ_k Φ_qᵀ H_e / n, with the kernel K formed."""
    real = torch.ones(BATCH, TOKEN, dtype=torch.bool) if mask is None else mask
    phi = qk / qk.norm(dim=-1, keepdim=True) * real[:, None, :, None]
    n = real.sum(dim=-1).clamp_min(1)[:, None, None, None]
    phi_q, phi_k = phi.chunk(2, dim=1)
    h_e, h_r = dual.mT.chunk(2, dim=1)
    kernel = phi_q @ phi_k.mT / n
    scores = torch.cat([kernel @ h_r, kernel.mT @ h_e], dim=1)
    directions = torch.cat([phi_k.mT @ h_r, phi_q.mT @ h_e], dim=1) / n
    both = scores.mT.unflatten(1, (2, -1))
    return both, scores.square().sum(dim=(0, 2)), directions


def outputs(merged: Tensor, readout: Tensor, bias: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    return (dispatch.read_out(merged, readout, bias),)


def plain_outputs(
    merged: Tensor, readout: Tensor, bias: Tensor, _: Tensor | None
) -> tuple[Tensor, ...]:
    return (svgp.read_out(merged, readout, bias),)


def as_is(*shape: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return shape, tuple(range(len(shape)))


# the heads of a token side by side in memory, as the maps of a layer leave them
QUERIES = (BATCH, TOKEN, PAIR, FEATURE), (0, 2, 1, 3)
MERGED = (BATCH, PAIR, RANK, TOKEN), (0, 1, 3, 2)
READOUT = (PAIR, RANK, FEATURE)
CASES = {
    "scores": Case(scores, plain_scores, [QUERIES, as_is(BATCH, PAIR, FEATURE, RANK)], 2),
    "scores, shared": Case(scores, plain_scores, [QUERIES, as_is(PAIR, FEATURE, RANK)], 2),
    "dual": Case(
        dual_scores, plain_dual_scores, [QUERIES, ((BATCH, TOKEN, PAIR, RANK), (0, 2, 3, 1))], 3
    ),
} | {
    f"{name}, {'a bias for each token' if per_token else 'one bias'}": Case(
        outputs, plain_outputs, [merged, as_is(*draws, *READOUT), as_is(*per_token, FEATURE)]
    )
    for per_token in ((), (TOKEN,))
    for name, merged, draws in (
        ("a draw for each sequence", MERGED, (BATCH,)),
        ("one draw", MERGED, ()),
        ("samples", MERGED, (SAMPLE, 1)),
        ("samples of samples", as_is(SAMPLE, BATCH, PAIR, TOKEN, RANK), (SAMPLE, 1)),
    )
}
PROJECTIONS = ["scores", "scores, shared", "dual"]


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "used"),
    [(name, used) for name, case in CASES.items() for used in {None, *range(case.num_results)}],
)
def test_results_and_gradients_equal_the_plain_formulas(
    name: str, used: int | None, masked: bool, generator: torch.Generator
) -> None:
    case, mask = CASES[name], some_mask() if masked else None
    inputs = case.inputs(generator)

    fast, plain = case.fast(*inputs, mask), case.plain(*inputs, mask)

    assert_close(fast, plain)
    # gradients may come from all results or from one
    chosen = slice(None) if used is None else slice(used, used + 1)
    weights = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in plain[chosen]]
    ours, theirs = (
        torch.autograd.grad(results[chosen], inputs, weights, allow_unused=True)
        for results in (fast, plain)
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_gradients_have_the_layout_of_what_they_belong_to(
    name: str, generator: torch.Generator
) -> None:
    case = CASES[name]
    inputs = case.inputs(generator)
    (first, *_) = case.fast(*inputs, None)
    for value, grad in zip(inputs, torch.autograd.grad(first.sum(), inputs), strict=True):
        assert name.startswith("samples") or grad.stride() == value.stride()


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_right(name: str, generator: torch.Generator) -> None:
    case, mask = CASES[name], some_mask()

    def total(*inputs: Tensor) -> Tensor:
        return torch.stack([t.square().sum() for t in case.fast(*inputs, mask)]).sum()

    inputs = case.inputs(generator)
    assert torch.autograd.gradcheck(total, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(total, inputs, fast_mode=True)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_zero_tokens_have_finite_gradients(name: str, generator: torch.Generator) -> None:
    case = CASES[name]
    t, other = case.inputs(generator)
    t = torch.zeros_like(t, requires_grad=True)
    case.fast(t, other, None)[0].sum().backward()
    assert t.grad is not None
    assert t.grad.isfinite().all()


@pytest.mark.parametrize(("batch", "token"), [(0, TOKEN), (BATCH, 0)])
@pytest.mark.parametrize("name", ["scores, shared", "dual"])
def test_nothing_gives_nothing(
    name: str, batch: int, token: int, generator: torch.Generator
) -> None:
    case = CASES[name]
    t, other = case.inputs(generator)
    if name == "dual":
        other = other[:batch, :, :, :token]
    scores, energy, *_ = case.fast(t[:batch, :, :token], other, None)
    assert scores.shape == (batch, 2, PAIR // 2, RANK, token)
    assert (energy == 0).all()
    scores.sum().backward()


@pytest.mark.parametrize("name", PROJECTIONS)
def test_energy_is_left_out_unless_it_is_asked_for(name: str, generator: torch.Generator) -> None:
    t, other = (value.detach() for value in CASES[name].inputs(generator))
    project = dispatch.project_dual if name == "dual" else dispatch.project
    found = project(t, other, some_mask())
    found = found[0] if name == "dual" else found
    assert found.energy is None
    assert_close(found.scores, CASES[name].plain(t, other, some_mask())[0])


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("Scores", "DualScores", "ReadOut"):
        monkeypatch.delattr(dispatch, kernel)


@pytest.mark.usefixtures("without_kernels", "plain_products")
@pytest.mark.parametrize("name", ["scores", "dual", "one draw, one bias"])
@pytest.mark.parametrize("how", ["half", "autocast", "transformed"])
def test_plain_formulas_serve_what_the_kernels_do_not(
    name: str, how: str, generator: torch.Generator
) -> None:
    dtype = torch.bfloat16 if how == "half" else torch.float32
    case = CASES[name]
    inputs = [t.detach() for t in case.inputs(generator, dtype)]
    autocast = torch.autocast("cpu", torch.bfloat16) if how == "autocast" else nullcontext()
    expected = case.plain(*(t.float() for t in inputs), None)[0]

    def first(*inputs: Tensor) -> Tensor:
        return case.fast(*inputs, None)[0]

    if how == "transformed":
        first = torch.func.vmap(first, in_dims=(0, *[None] * (len(inputs) - 1)))
        inputs[0] = inputs[0].unsqueeze(0)
        expected = expected.unsqueeze(0)
    with autocast:
        # bfloat16 has eight bits
        rounding = {"rtol": 0.1, "atol": 0.1} if how in ("half", "autocast") else {}
        assert_close(first(*inputs).float(), expected, **rounding)
