import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from kepsvgp import KEPAttention, predict
from kepsvgp.inference.mode import copy_of, is_bound


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


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def patch(model: nn.Module) -> nn.Module:
    """As wrappers do that bind the original."""
    model.forward = model.forward
    return model


@pytest.mark.parametrize("wrap", [lambda m: m, patch])
@pytest.mark.parametrize("training", [True, False])
def test_threads_predict_alike_in_any_mode_and_change_nothing(model, wrap, training) -> None:
    x = torch.randn(5, 7, 8, generator=seeded())
    model.train(training)
    model.twice[0].eval()
    wrapped = wrap(model)
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def probs(seed: int) -> torch.Tensor:
        return predict(wrapped, x, generator=seeded(seed)).probs

    expected = [probs(seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(probs, list(range(12)) * 4))

    assert all(torch.equal(each, expected[i % 12]) for i, each in enumerate(found))
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_copy_shares_tensors_and_nothing_else(model) -> None:
    copy = copy_of(model, lambda module: False)
    assert [*copy.state_dict()] == [*model.state_dict()]
    assert all(a is b for a, b in zip(copy.parameters(), model.parameters(), strict=True))
    assert copy.again is copy.twice is not model.twice
    copy.attention.register_forward_hook(lambda *_: pytest.fail("called"))
    copy.extra = nn.Linear(1, 1)
    model(torch.randn(2, 3, 8))
    assert not hasattr(model, "extra")


def test_what_binds_the_original_is_known(model) -> None:
    assert not is_bound(model)
    assert is_bound(patch(model))


# in a process of its own: compiled code does without the type checks of these tests
COMPILED = """
import sys, torch
from concurrent.futures import ThreadPoolExecutor
from kepsvgp import KEPAttention, predict
from kepsvgp.inference.mode import is_bound

torch.manual_seed(0)
plain = torch.nn.Sequential(KEPAttention(8, 2, rank=3), torch.nn.Flatten(), torch.nn.Linear(56, 3))
plain.train(sys.argv[1] == "train")
model = torch.compile(plain, backend="eager")
assert is_bound(model) and not is_bound(plain)
x = torch.randn(5, 7, 8)

def probs(seed):
    return predict(model, x, num_samples=3, generator=torch.Generator().manual_seed(seed)).probs

expected = [probs(seed) for seed in range(8)]
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(probs, list(range(8)) * 4))
assert all(torch.equal(each, expected[i % 8]) for i, each in enumerate(found))
assert all(module.training == (sys.argv[1] == "train") for module in plain.modules())
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_compiled_models_serve_one_thread_at_a_time(mode) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, mode], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
