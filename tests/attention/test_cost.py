"""The shape of the cost, by what a step allocates: linear in tokens, and linear in the rank.

Bytes are counted and not seconds, so that no busy machine disturbs the answer. What does not grow
with the tokens, such as the parameters and their gradients, is taken out by differences.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from benchmarks.contenders import NaiveAttention, PaperKEPAttention
from benchmarks.growth import allocations
from benchmarks.layer import step
from kepsvgp.attention import KEPAttention

DIM, HEADS = 32, 2
LENGTHS, RANKS = (512, 1024, 2048), (4, 8, 16)

Build = Callable[[int], nn.Module]


def kep(kind: type[KEPAttention] = KEPAttention, **settings) -> Build:
    return lambda rank: kind(DIM, HEADS, rank=rank, **settings)


def allocated(build: Build, num_tokens: int, rank: int) -> int:
    """All that a second step allocates, whether or not it is freed again: a bound on the peak."""
    x = torch.randn(1, num_tokens, DIM, requires_grad=True)
    run = step(build(rank), x, torch.ones_like(x))
    run()
    return sum(size for size in allocations(run) if size > 0)


def per_token(build: Build, rank: int, lengths: tuple[int, int] = LENGTHS[:2]) -> float:
    short, long = lengths
    more = allocated(build, long, rank) - allocated(build, short, rank)
    return more / (long - short)


def growth_with_tokens(build: Build) -> float:
    """1 where a token costs the same in long sequences, 2 where the cost is N²."""
    first, second = (per_token(build, RANKS[0], lengths) for lengths in pairwise(LENGTHS))
    return second / first


def growth_with_rank(build: Build) -> float:
    """What the second doubling of s adds by what the first adds: 2 for s, 4 for s²."""
    costs = [per_token(build, rank) for rank in RANKS]
    first, second = (b - a for a, b in pairwise(costs))
    return second / first


LAYERS = {
    "landmark": kep(),
    "free": kep(projection="free"),
    "dual": kep(projection="dual"),
    "residual": kep(projection="dual", ksvd_loss="residual"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_bytes_of_a_token_do_not_grow_with_the_number_of_tokens(name: str) -> None:
    assert growth_with_tokens(LAYERS[name]) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("name", LAYERS)
def test_bytes_of_a_token_are_linear_in_the_rank(name: str) -> None:
    assert growth_with_rank(LAYERS[name]) == pytest.approx(2.0, abs=0.02)


def test_guards_see_a_quadratic_cost() -> None:
    # every N × N matrix stored; the N × s × s tensor of the paper's equations
    assert growth_with_tokens(lambda rank: NaiveAttention(DIM, HEADS)) > 1.9
    assert growth_with_rank(kep(PaperKEPAttention, projection="landmark")) > 3.0
    assert growth_with_rank(kep(noise="token")) > 3.0
