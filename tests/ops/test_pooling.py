"""Pooled samples against the same block calculated plainly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp.attention import KEPAttention, SoftmaxAttention
from kepsvgp.attention.kep import Merge
from kepsvgp.models.blocks import Block, encode
from kepsvgp.ops import pooling, sampled

# every size distinct: a swapped axis cannot pass
SAMPLE, BATCH, TOKEN, DIM, HIDDEN, HEADS, RANK = 2, 3, 7, 24, 13, 4, 5
# one token, some tokens of a sequence, two sequences, everything in a slice
PER_TOKEN = SAMPLE * DIM * 8
SLICES = [1, 3 * PER_TOKEN, 2 * TOKEN * PER_TOKEN, 2**22]


def make_block(**settings) -> Block:
    torch.manual_seed(0)
    block = Block(KEPAttention(DIM, 2, rank=3, **settings), DIM, HIDDEN, dropout=0.5)
    # parameters of norms start as ones and zeros, which hides mistakes
    for parameter in block.mlp_norm.parameters():
        nn.init.normal_(parameter)
    return block.double().eval()


def make_tokens(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, TOKEN, DIM, generator=generator, dtype=torch.float64)


def make_factors(generator: torch.Generator, batch: int) -> tuple[Tensor, Tensor]:
    """The scores of every head, and its maps."""
    scores = torch.randn(batch, HEADS, TOKEN, RANK, generator=generator, dtype=torch.float64)
    shape = SAMPLE, HEADS, RANK, DIM // HEADS
    return scores, torch.randn(shape, generator=generator, dtype=torch.float64)


def make_samples(x: Tensor, scores: Tensor, maps: Tensor) -> Tensor:
    return x + torch.einsum("b h n k, s h k w -> s b n h w", scores, maps).flatten(-2)


def some_mask() -> Tensor:
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[0, 4:] = False
    mask[2] = False
    return mask


def pooled(block: Block, x: Tensor, mask: Tensor | None = None) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return block(x, mask, num_samples=SAMPLE, generator=draws, pool=True)


@pytest.mark.parametrize("num_bytes", SLICES)
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_hidden_equals_the_plain_formulas(
    num_bytes: int, weighted: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "SLICE_BYTES", num_bytes)
    block, x = make_block(), make_tokens(generator)
    scores, maps = make_factors(generator, BATCH)
    weights = torch.ones(BATCH, TOKEN, dtype=torch.float64)
    if weighted:
        weights = torch.rand(BATCH, TOKEN, generator=generator, dtype=torch.float64)
    norm, to_hidden = block.mlp_norm, block.mlp[0]
    assert isinstance(to_hidden, nn.Linear)

    with torch.no_grad():
        factors = sampled.factors(scores, maps, x.new_zeros(DIM // HEADS))
        ours = pooling.pool_hidden(x, weights, factors, norm, to_hidden)
        hidden = nn.functional.gelu(to_hidden(norm(make_samples(x, scores, maps))))
        theirs = torch.einsum("b n, s b n h -> s b h", weights, hidden)

    assert_close(ours, theirs)


@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
@pytest.mark.parametrize("masked", [False, True])
def test_pooled_samples_equal_those_of_the_plain_block(
    merge: Merge, masked: bool, generator: torch.Generator
) -> None:
    block = make_block(merge=merge, num_tokens=TOKEN, projection="dual")
    x, mask = make_tokens(generator), some_mask() if masked else None
    # where gradients are wanted, everything is plain
    plain = pooled(block, x, mask)

    with torch.no_grad():
        assert block.takes_in_samples(x)
        ours = pooled(block, x, mask)
        draws = torch.Generator().manual_seed(1)
        encoded = encode([block], x, mask, num_samples=SAMPLE, generator=draws)

    assert not block.takes_in_samples(x)
    assert_close(ours, plain.detach())
    assert_close(encoded, ours)


@pytest.mark.parametrize("masked", [False, True])
def test_formed_samples_equal_those_of_the_plain_blocks(
    masked: bool, generator: torch.Generator
) -> None:
    blocks = [make_block(projection="dual") for _ in range(2)]
    x, mask = 3 + make_tokens(generator), some_mask() if masked else None

    def sampled(**settings: bool) -> Tensor:
        draws = torch.Generator().manual_seed(1)
        return blocks[0](x, mask, num_samples=SAMPLE, generator=draws, **settings)

    def encoded() -> Tensor:
        draws = torch.Generator().manual_seed(1)
        return encode(blocks, x, mask, num_samples=SAMPLE, generator=draws)

    plain, plain_encoded = sampled(), encoded()

    with torch.no_grad():
        assert blocks[0].takes_in_samples(x)
        assert_close(sampled(), plain.detach())
        assert_close(encoded(), plain_encoded.detach())


def test_no_accuracy_is_lost_where_tokens_are_far_from_zero(generator: torch.Generator) -> None:
    block, many = make_block(), 100
    x = 1e3 + torch.randn(many, TOKEN, DIM, generator=generator, dtype=torch.float64)
    norm, to_hidden = block.mlp_norm, block.mlp[0]
    assert isinstance(to_hidden, nn.Linear)
    scores, maps = make_factors(generator, many)

    def plain(x: Tensor, scores: Tensor, maps: Tensor) -> Tensor:
        return nn.functional.gelu(to_hidden(norm(make_samples(x, scores, maps)))).sum(dim=-2)

    def ours(x: Tensor, scores: Tensor, maps: Tensor) -> Tensor:
        ones = x.new_ones(x.shape[:2])
        factors = sampled.factors(scores, maps, x.new_zeros(DIM // HEADS))
        return pooling.pool_hidden(x, ones, factors, norm, to_hidden)

    with torch.no_grad():
        exact = plain(x, scores, maps)
        block.float()
        single = x.float(), scores.float(), maps.float()
        error, of_plain = ((f(*single) - exact).square().mean().sqrt() for f in (ours, plain))

    assert error <= 2 * of_plain


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2.0 * super().forward(input)


def put(name: str, make: Callable[[], nn.Module]) -> Callable[[Block], object]:
    return lambda block: block.set_submodule(name, make().double().eval())


CHANGES = {
    "hook on a map": lambda block: block.mlp[0].register_forward_hook(print),
    "hook on the MLP": lambda block: block.mlp.register_forward_hook(print),
    "hook on the attention": lambda block: block.attention.register_forward_pre_hook(print),
    "other map": put("mlp.0", lambda: Doubled(DIM, HIDDEN)),
    "other activation": put("mlp.1", nn.ReLU),
    "approximate activation": put("mlp.1", lambda: nn.GELU(approximate="tanh")),
    "other norm": put("mlp_norm", lambda: nn.RMSNorm(DIM)),
    "norm without bias": put("mlp_norm", lambda: nn.LayerNorm(DIM, bias=False)),
    "other attention": put("attention", lambda: SoftmaxAttention(DIM, 2)),
    "noise by token": put("attention", lambda: KEPAttention(DIM, 2, rank=3, noise="token")),
    "scores as wide as the tokens": put("attention", lambda: KEPAttention(DIM, 2, rank=DIM // 2)),
    "dropout that is sampled": lambda block: block.mlp[2].train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_block_that_was_changed_is_calculated_plainly(
    change: str, generator: torch.Generator
) -> None:
    block, x = make_block(), make_tokens(generator)
    CHANGES[change](block)

    with torch.no_grad():
        assert not block.takes_in_samples(x)


def test_half_precision_and_tokens_with_samples_are_calculated_plainly(
    generator: torch.Generator,
) -> None:
    block, x = make_block(), make_tokens(generator)

    with torch.no_grad():
        assert block.takes_in_samples(x)
        assert not block.takes_in_samples(x.bfloat16())
        assert not block.takes_in_samples(x.expand(SAMPLE, -1, -1, -1))
        with torch.autocast("cpu"):
            assert not block.takes_in_samples(x.float())
