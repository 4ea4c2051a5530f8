import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.attention import SoftmaxAttention

SAMPLE, BATCH, TOKEN, HEADS, DIM = 2, 3, 7, 5, 55


@pytest.fixture
def layer(generator: torch.Generator) -> SoftmaxAttention:
    layer = SoftmaxAttention(DIM, HEADS).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(DIM))
    return layer


def by_loops(layer: SoftmaxAttention, tokens: Tensor) -> Tensor:
    """Attention of one sequence, head by head, with the N × N matrix written out."""
    width = tokens.shape[-1] // layer.num_heads
    q, k, v = layer.to_qkv(tokens).chunk(3, dim=-1)
    heads = []
    for head in range(layer.num_heads):
        mine = slice(head * width, (head + 1) * width)
        weights = torch.softmax(q[:, mine] @ k[:, mine].T / math.sqrt(width), dim=-1)
        heads.append(weights @ v[:, mine])
    return layer.to_output(torch.cat(heads, dim=-1))


def test_softmax_attention_matches_the_formula(layer, generator) -> None:
    x = torch.randn(BATCH, TOKEN, DIM, generator=generator, dtype=torch.float64)

    assert_close(layer(x), torch.stack([by_loops(layer, tokens) for tokens in x]))


def test_softmax_attention_keeps_a_sample_axis(layer, generator) -> None:
    x = torch.randn(SAMPLE, BATCH, TOKEN, DIM, generator=generator, dtype=torch.float64)
    mask = torch.arange(TOKEN) < torch.tensor([[2], [7], [4]])

    expected = torch.stack([layer(sample, mask) for sample in x])
    assert_close(layer(x, mask, num_samples=SAMPLE), expected)


def test_softmax_attention_ignores_padding(layer, generator) -> None:
    x = torch.randn(BATCH, TOKEN, DIM, generator=generator, dtype=torch.float64)
    lengths = [2, 7, 4]
    mask = torch.arange(TOKEN) < torch.tensor(lengths)[:, None]

    out = layer(x, mask)

    for row, length in enumerate(lengths):
        assert_close(out[row, :length], by_loops(layer, x[row, :length]))


def test_softmax_attention_of_a_fully_padded_row_is_finite(layer, generator) -> None:
    x = torch.randn(2, TOKEN, DIM, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False] * TOKEN, [True] * TOKEN])

    out = layer(x, mask)
    out.sum().backward()

    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
