from functools import partial
from threading import Thread

import pytest
import torch
from torch import nn

from kepsvgp import KEPAttention, predict
from kepsvgp.attention import fixed_draws
from kepsvgp.attention.base import draws_of
from kepsvgp.inference.mode import copy_of, evaluating, is_bound


class Classifier(nn.Module):
    """Dropout, a batch norm and a KEP layer: what a mode decides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.attention = KEPAttention(8, 2, rank=3)
        self.twice = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))
        self.again = self.twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.mT).mT
        return self.again(self.attention(x)).mean(1)


class Aside(Classifier):
    """Parts that are called by other ways than their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {"drop": [self.twice]}
        self.attend = partial(self.attention.forward, mask=None)
        self.rest = self.others_of
        self.seen: list[int] = []

    def others_of(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.others["drop"][0](x) if not self.training else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.attend(x)).mean(1)


@pytest.fixture
def model() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def patch(model: nn.Module) -> nn.Module:
    """As wrappers do that bind the original."""
    model.forward = model.forward
    return model


def test_a_copy_shares_tensors_and_nothing_else(model) -> None:
    copy = copy_of(model, lambda module: False)
    assert [*copy.state_dict()] == [*model.state_dict()]
    assert all(a is b for a, b in zip(copy.parameters(), model.parameters(), strict=True))
    assert copy.again is copy.twice is not model.twice
    copy.attention.register_forward_hook(lambda *_: pytest.fail("called"))
    copy.extra = nn.Linear(1, 1)
    model(torch.randn(2, 3, 8))
    assert not hasattr(model, "extra")


def test_a_copy_calls_its_own_parts_however_it_does() -> None:
    torch.manual_seed(0)
    model, x = Aside(), torch.randn(2, 3, 8)

    def probs() -> torch.Tensor:
        return predict(model, x, generator=torch.Generator().manual_seed(0)).probs

    found = probs()
    assert torch.equal(found, probs())
    assert len(model.seen) > 0
    model.eval()
    assert torch.equal(found, probs())


def test_what_binds_the_original_is_known(model) -> None:
    assert not is_bound(model)
    assert is_bound(patch(model))


def test_layers_hold_draws_for_compiled_code_alone(model) -> None:
    compiled = torch.compile(model, backend="eager")
    for each, is_held in ((model.eval(), False), (compiled, True)):
        with evaluating(each) as evaluated, fixed_draws(evaluated, 1):
            assert (model.attention._held_draws is not None) == is_held
    assert model.attention._held_draws is None


def test_draws_are_those_of_the_thread_while_another_compiles(model, monkeypatch) -> None:
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    with fixed_draws(model, 1) as draws:
        model.attention._held_draws = torch.zeros(1)
        assert draws_of(model.attention) is draws[model.attention]


def test_mode_that_a_compiled_model_gives_back_is_not_relied_on(model) -> None:
    found = []

    def ask() -> None:
        with evaluating(model) as evaluated:
            found.append(evaluated is model)

    thread = Thread(target=ask)
    with evaluating(torch.compile(model, backend="eager")):
        thread.start()
        thread.join(0.5)
    thread.join()
    assert found == [False]
