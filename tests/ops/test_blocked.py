"""The blocks against the plain formulas, whatever the size of the blocks."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import KEPAttention
from kepsvgp.maths import ksvd
from kepsvgp.ops import blocked

# every size distinct and prime: a swapped axis cannot pass
BATCH, HEAD, TOKEN, FEATURE, RANK = 3, 2, 7, 5, 11
# one token, some tokens, some sequences, everything in a block
BLOCKS = [1, 3 * HEAD * FEATURE * 8, 2 * TOKEN * HEAD * FEATURE * 8, 2**22]


@pytest.fixture(params=BLOCKS)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK_BYTES", request.param)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def queries(generator: torch.Generator) -> Tensor:
    """As the layer has them: heads of a token side by side in memory."""
    return normal(generator, BATCH, TOKEN, HEAD, FEATURE).transpose(1, 2)


def some_mask() -> Tensor:
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[0, 4:] = False
    mask[2] = False
    return mask


def plain(t: Tensor, directions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = ksvd.project(t, directions, mask)
    return scores, ksvd.sum_of_squares(scores)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_scores_energy_and_gradients_equal_the_plain_formulas(
    masked: bool, shared: bool, generator: torch.Generator
) -> None:
    t = queries(generator).requires_grad_()
    directions = normal(generator, *([] if shared else [BATCH]), HEAD, FEATURE, RANK)
    directions.requires_grad_()
    mask = some_mask() if masked else None

    ours = blocked.project(t, directions, mask, with_energy=True)
    theirs = plain(t, directions, mask)

    assert_close(tuple(ours), theirs)
    weights = [normal(generator, *value.shape) for value in theirs]
    for a, b in zip(
        torch.autograd.grad(ours, [t, directions], weights),
        torch.autograd.grad(theirs, [t, directions], weights),
        strict=True,
    ):
        assert_close(a, b)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("per_token", [False, True])
def test_readout_and_gradients_equal_the_plain_formula(
    per_token: bool, generator: torch.Generator
) -> None:
    merged = normal(generator, BATCH, HEAD, RANK, TOKEN).mT.requires_grad_()
    readout = normal(generator, BATCH, HEAD, RANK, FEATURE).requires_grad_()
    bias = normal(generator, *([TOKEN] if per_token else []), FEATURE).requires_grad_()
    inputs = [merged, readout, bias]

    ours = blocked.read_out(*inputs)
    theirs = (merged @ readout + bias).transpose(1, 2).reshape(BATCH, TOKEN, -1)

    assert_close(ours, theirs)
    weight = normal(generator, *theirs.shape)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, weight),
        torch.autograd.grad(theirs, inputs, weight),
        strict=True,
    ):
        assert_close(a, b)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("per_token", [False, True])
def test_samples_equal_one_readout_after_another(
    per_token: bool, generator: torch.Generator
) -> None:
    merged = normal(generator, BATCH, HEAD, TOKEN, RANK)
    readouts = normal(generator, 4, HEAD, RANK, FEATURE)
    bias = normal(generator, *([TOKEN] if per_token else []), FEATURE)
    each = torch.stack([blocked.read_out(merged, readout, bias) for readout in readouts])

    assert_close(blocked.read_out_samples(merged, readouts, bias), each)
    with torch.no_grad():
        assert_close(blocked.read_out_samples(merged, readouts, bias), each)


def test_second_derivatives_are_right(generator: torch.Generator) -> None:
    t = queries(generator)[:2, :, :3].contiguous().requires_grad_()
    directions = normal(generator, 2, HEAD, FEATURE, 2).requires_grad_()
    readout = normal(generator, 2, HEAD, 2, 3).requires_grad_()
    bias = normal(generator, 3).requires_grad_()

    def both(t: Tensor, directions: Tensor, readout: Tensor, bias: Tensor) -> Tensor:
        scores, energy = blocked.project(t, directions, with_energy=True)
        assert energy is not None
        return blocked.read_out(scores.mT, readout, bias).square().sum() + energy.sum()

    inputs = (t, directions, readout, bias)
    assert torch.autograd.gradcheck(both, inputs)
    assert torch.autograd.gradgradcheck(both, inputs)


def test_gradient_has_the_layout_of_the_queries(generator: torch.Generator) -> None:
    t = queries(generator).requires_grad_()
    scores, _ = blocked.project(t, normal(generator, BATCH, HEAD, FEATURE, RANK))
    (grad,) = torch.autograd.grad(scores.sum(), t)
    assert grad.transpose(1, 2).is_contiguous()


def test_zero_tokens_have_finite_gradients() -> None:
    t = torch.zeros(1, HEAD, TOKEN, FEATURE, requires_grad=True)
    scores, _ = blocked.project(t, torch.ones(HEAD, FEATURE, RANK))
    scores.sum().backward()
    assert t.grad is not None
    assert t.grad.isfinite().all()


def test_function_transforms_take_the_plain_formulas(generator: torch.Generator) -> None:
    t, directions = queries(generator), normal(generator, HEAD, FEATURE, RANK)

    def total(t: Tensor) -> Tensor:
        return blocked.project(t.unsqueeze(0), directions).scores.square().sum()

    by_sequence = torch.func.vmap(torch.func.grad(total))(t)
    assert_close(by_sequence[1], torch.func.grad(total)(t[1]))


def test_other_feature_maps_take_the_plain_formulas(generator: torch.Generator) -> None:
    linear = ksvd.FeatureMap(base=ksvd.identity, scale=lambda t: torch.ones_like(t[..., 0]))
    t, directions = queries(generator), normal(generator, HEAD, FEATURE, RANK)
    assert_close(blocked.project(t, directions, None, linear).scores, (t @ directions).mT)


@pytest.mark.parametrize("shape", [(0, HEAD, TOKEN, FEATURE), (BATCH, HEAD, 0, FEATURE)])
def test_nothing_to_project_gives_nothing(shape: tuple[int, ...]) -> None:
    t = torch.ones(shape, requires_grad=True)
    scores, energy = blocked.project(t, torch.ones(HEAD, FEATURE, RANK), with_energy=True)
    assert scores.shape == (shape[0], HEAD, RANK, shape[2])
    assert energy is not None
    assert (energy == 0).all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_layer_take_the_blocks_too(copied) -> None:
    layer = copied(KEPAttention(10, 2, rank=3))

    assert ksvd.is_cosine(layer.feature_map)
    assert not ksvd.is_cosine(ksvd.FeatureMap(ksvd.identity, torch.abs))
