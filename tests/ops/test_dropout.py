import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from kepsvgp.ops import dropout
from kepsvgp.ops.dropout import Dropout


@pytest.fixture
def is_ours(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one entry with every call that torch's dropout does not answer."""
    calls, masked = [], dropout._masked

    def watched(x: Tensor, kept: Tensor, scale: float) -> Tensor:
        calls.append(True)
        return masked(x, kept, scale)

    monkeypatch.setattr(dropout, "_masked", watched)
    return calls


@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
def test_entries_are_dropped_with_the_probability_asked_for(p: float, is_ours: list[bool]) -> None:
    torch.manual_seed(0)
    size = 1_000_003
    out = Dropout(p)(torch.ones(size, dtype=torch.float64))
    num_dropped = int((out == 0).sum())
    deviation = (size * p * (1 - p)) ** 0.5
    assert abs(num_dropped - size * p) < 4 * deviation
    # what is kept is scaled so that the mean stays, up to the rounding of p
    assert_close(out[out != 0].unique(), torch.tensor([1 / (1 - p)]).double(), rtol=1e-3, atol=0)
    assert is_ours


def test_neighbours_are_dropped_independently() -> None:
    """Four entries share a number of the generator; no two of them share a bit."""
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).double().view(-1, 8)
    correlation = torch.corrcoef(kept.mT) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 4 / 50_000**0.5


def test_gradient_passes_where_the_entry_did(is_ours: list[bool]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, 3).transpose(0, 2).requires_grad_()
    upstream = torch.randn(3, 7, 5)
    out = Dropout(0.4)(x)
    out.backward(upstream)
    assert out.shape == x.shape
    mask = out.detach() / x.detach()
    assert set(mask.eq(0).flatten().tolist()) == {True, False}
    assert_close(x.grad, mask * upstream)
    assert len(is_ours) == 2


def test_draws_follow_the_seed() -> None:
    layer, x = Dropout(0.3), torch.ones(1000)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rates_at_the_ends_are_those_of_torch(p: float) -> None:
    assert_close(Dropout(p)(torch.ones(9)), nn.Dropout(p)(torch.ones(9)))


def test_nothing_is_dropped_in_evaluation_and_from_nothing() -> None:
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


def test_half_precision_compiled_and_transformed_calls_are_answered_by_torch(
    is_ours: list[bool],
) -> None:
    layer, x = Dropout(0.5), torch.ones(64)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    torch.func.vmap(layer, randomness="different")(x.expand(2, 64))
    torch.compile(layer, backend="eager")(x)
    assert not is_ours


def test_modes_that_answer_for_dropout_see_it() -> None:
    class Answer(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return caught if func is F.dropout else func(*args, **(kwargs or {}))

    caught = torch.full((3,), 7.0)
    with Answer():
        assert Dropout(0.5)(torch.ones(3)) is caught
