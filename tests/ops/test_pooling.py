"""Pooled samples against the same block calculated plainly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp.attention import KEPAttention, SoftmaxAttention
from kepsvgp.attention.kep import Merge
from kepsvgp.models.blocks import Block, encode
from kepsvgp.ops import pooling

# every size distinct: a swapped axis cannot pass
SAMPLE, BATCH, TOKEN, DIM, HIDDEN, INNER = 2, 3, 7, 24, 13, 5
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
    scores = torch.randn(BATCH, TOKEN, INNER, generator=generator, dtype=torch.float64)
    maps = torch.randn(SAMPLE, INNER, DIM, generator=generator, dtype=torch.float64)
    weights = torch.ones(BATCH, TOKEN, dtype=torch.float64)
    if weighted:
        weights = torch.rand(BATCH, TOKEN, generator=generator, dtype=torch.float64)
    norm, to_hidden = block.mlp_norm, block.mlp[0]
    assert isinstance(to_hidden, nn.Linear)

    with torch.no_grad():
        ours = pooling.pool_hidden(x, weights, scores, maps, norm, to_hidden)
        samples = x + torch.einsum("b n k, s k d -> s b n d", scores, maps)
        hidden = nn.functional.gelu(to_hidden(norm(samples)))
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
        assert block.pools_samples(x)
        ours = pooled(block, x, mask)
        draws = torch.Generator().manual_seed(1)
        encoded = encode([block], x, mask, num_samples=SAMPLE, generator=draws)

    assert not block.pools_samples(x)
    assert_close(ours, plain.detach())
    assert_close(encoded, ours)


def test_no_accuracy_is_lost_where_tokens_are_far_from_zero(generator: torch.Generator) -> None:
    block, many = make_block(), 100
    x = 1e3 + torch.randn(many, TOKEN, DIM, generator=generator, dtype=torch.float64)
    norm, to_hidden = block.mlp_norm, block.mlp[0]
    assert isinstance(to_hidden, nn.Linear)
    scores = torch.randn(many, TOKEN, INNER, generator=generator, dtype=torch.float64)
    maps = torch.randn(SAMPLE, INNER, DIM, generator=generator, dtype=torch.float64)

    def plain(x: Tensor, scores: Tensor, maps: Tensor) -> Tensor:
        samples = x + torch.einsum("b n k, s k d -> s b n d", scores, maps)
        return nn.functional.gelu(to_hidden(norm(samples))).sum(dim=-2)

    def ours(x: Tensor, scores: Tensor, maps: Tensor) -> Tensor:
        ones = x.new_ones(x.shape[:2])
        return pooling.pool_hidden(x, ones, scores, maps, norm, to_hidden)

    with torch.no_grad():
        exact = plain(x, scores, maps)
        block.float()
        single = x.float(), scores.float(), maps.float()
        error, of_plain = ((f(*single) - exact).square().mean().sqrt() for f in (ours, plain))

    assert error <= 2 * of_plain


def hooked(block: Block) -> None:
    block.mlp[0].register_forward_hook(lambda *_: None)


def watched(block: Block) -> None:
    block.attention.register_forward_pre_hook(lambda *_: None)


def adapted(block: Block) -> None:
    class Adapted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2.0 * super().forward(input)

    block.mlp[0] = Adapted(DIM, HIDDEN).double().eval()


def other_activation(block: Block) -> None:
    block.mlp[1] = nn.ReLU().eval()


def approximate_activation(block: Block) -> None:
    block.mlp[1] = nn.GELU(approximate="tanh").eval()


def norm_without_bias(block: Block) -> None:
    block.mlp_norm = nn.LayerNorm(DIM, bias=False).double().eval()


def other_norm(block: Block) -> None:
    block.register_module("mlp_norm", nn.RMSNorm(DIM).double().eval())


def other_attention(block: Block) -> None:
    block.attention = SoftmaxAttention(DIM, 2).double().eval()


def hooked_mlp(block: Block) -> None:
    block.mlp.register_forward_hook(lambda *_: None)


def sampled_dropout(block: Block) -> None:
    block.mlp[2].train()


@pytest.mark.parametrize(
    "change",
    [
        hooked,
        watched,
        adapted,
        other_activation,
        approximate_activation,
        other_norm,
        norm_without_bias,
        other_attention,
        hooked_mlp,
        sampled_dropout,
    ],
)
def test_block_that_was_changed_is_calculated_plainly(
    change: Callable[[Block], None], generator: torch.Generator
) -> None:
    block, x = make_block(), make_tokens(generator)
    change(block)

    with torch.no_grad():
        assert not block.pools_samples(x)


def test_noise_by_token_is_calculated_plainly(generator: torch.Generator) -> None:
    with torch.no_grad():
        assert not make_block(noise="token").pools_samples(make_tokens(generator))


def test_scores_as_wide_as_the_tokens_are_not_worth_it(generator: torch.Generator) -> None:
    block = Block(KEPAttention(DIM, 2, rank=DIM // 2), DIM, HIDDEN, 0.0).double().eval()

    with torch.no_grad():
        assert not block.pools_samples(make_tokens(generator))


def test_half_precision_and_tokens_with_samples_are_calculated_plainly(
    generator: torch.Generator,
) -> None:
    block, x = make_block(), make_tokens(generator)

    with torch.no_grad():
        assert not block.pools_samples(x.bfloat16())
        assert not block.pools_samples(x.expand(SAMPLE, -1, -1, -1))
        with torch.autocast("cpu"):
            assert not block.pools_samples(x.float())
