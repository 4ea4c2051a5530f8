"""Masks of every kind: padding reaches no posterior, and nothing else is taken for padding."""

from typing import Any

import families
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import convert, predict
from kepsvgp.conversion.masks import real_tokens, sequences
from kepsvgp.errors import UserError

BATCH, COUNT, WIDTH = 3, 6, 8
# the last tokens of every sequence are padding, or another sequence
REAL = 4
X = torch.zeros(BATCH, COUNT, WIDTH)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float", "int"])
def test_real_tokens_are_those_that_may_be_seen(causal: bool, kind: str) -> None:
    lengths = torch.tensor([4, 2, 1])
    real = torch.arange(4) < lengths.unsqueeze(1)
    seen = real[:, None, None, :].expand(3, 1, 4, 4)
    seen = seen & torch.ones(4, 4, dtype=torch.bool).tril() if causal else seen
    x = torch.zeros(3, 4, 2)
    mask = seen if kind == "bool" else seen.int()
    if kind == "float":
        # a bias by position on top hides nothing
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        mask = mask + 3 * torch.randn(3, 2, 4, 4)

    assert torch.equal(real_tokens(mask, x), real)
    assert torch.equal(real_tokens(mask[:, 0], x), real)
    assert real_tokens(torch.zeros(6, 4, 4), x) is None


@pytest.mark.parametrize("shape", [(COUNT,), (1, COUNT), (1, 1, COUNT), (BATCH, COUNT, 1)])
@pytest.mark.parametrize("fill", [None, -1e3, -torch.inf])
def test_row_of_tokens_may_have_any_shape(shape: tuple[int, ...], fill: float | None) -> None:
    real = torch.arange(COUNT) < REAL
    mask = real if fill is None else torch.zeros(COUNT).masked_fill(~real, fill)
    rows = BATCH if shape[0] == BATCH else 1

    found = real_tokens(mask.expand(rows, -1).reshape(shape), X)

    assert found is not None
    assert torch.equal(found, real.expand(BATCH, -1))


@pytest.mark.parametrize("name", ["head_mask", "layer_head_mask", "x_masked"])
def test_what_hides_no_tokens_is_no_mask_of_them(name: str) -> None:
    tokens, mask = sequences(Own(), X, {"x_masked": X, name: X})
    assert torch.equal(tokens, X)
    assert mask is None


def test_token_that_does_not_see_itself_is_real() -> None:
    mask = ~torch.eye(4, dtype=torch.bool).expand(3, 1, 4, 4)
    found = real_tokens(mask, torch.zeros(3, 4, 2))
    assert found is not None
    assert found.all()


class Own(nn.Module):
    """Attention of nobody's library, with any masks."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, mask: Any = None, attn_mask: Any = None,
                key_padding_mask: Any = None, cu_seqlens: Any = None) -> Tensor:  # fmt: skip
        scores = self.q(x) @ self.k(x).mT
        for seen in (mask, attn_mask):
            if seen is not None:
                scores = scores.masked_fill(~seen.reshape(-1, *seen.shape[-2:]), -1e9)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None], -1e9)
        return scores.softmax(-1) @ self.v(x)


class Torch(nn.Module):
    """That of torch, of which a mask of pairs may have one for every head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        return self.inner(x, x, x, need_weights=False, **masks)[0]


class Model(nn.Module):
    """The mean of the real tokens alone is seen."""

    def __init__(self, attention: nn.Module, masks: dict[str, Any]) -> None:
        super().__init__()
        self.attention, self.masks = attention, masks

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, **self.masks)[:, :REAL].mean(dim=1)


def converted(attention: nn.Module, masks: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    name = "attention.inner" if isinstance(attention, Torch) else "attention"
    return families.spread(convert(Model(attention, masks).eval(), [name]))


def answers(model: nn.Module, x: Tensor) -> Tensor:
    return predict(model, x, num_samples=5, generator=torch.Generator().manual_seed(0)).probs


PADDING = torch.arange(COUNT).expand(BATCH, -1) >= REAL
SEEN = (~PADDING)[:, None, None].expand(-1, 1, COUNT, COUNT)
OF_HEADS = (~SEEN).expand(-1, 2, -1, -1).flatten(0, 1)
ADDED = torch.zeros(OF_HEADS.shape).masked_fill(OF_HEADS, -torch.inf)
CAUSAL = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
PADDED = {
    "mask": (Own, {"mask": SEEN}),
    "attn_mask": (Own, {"attn_mask": SEEN}),
    "key_padding_mask": (Own, {"key_padding_mask": PADDING}),
    "both": (Own, {"key_padding_mask": PADDING, "attn_mask": CAUSAL}),
    "torch, pairs of each head": (Torch, {"attn_mask": OF_HEADS}),
    "torch, added to each head": (Torch, {"attn_mask": ADDED}),
    "torch, both": (Torch, {"attn_mask": ~CAUSAL, "key_padding_mask": PADDING}),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing_however_it_is_told(name: str) -> None:
    kind, masks = PADDED[name]
    masks = dict(masks)
    model = converted(kind(), masks)
    x, other = torch.randn(2, BATCH, COUNT, WIDTH)
    other[:, :REAL] = x[:, :REAL]

    assert_close(answers(model, other), answers(model, x), rtol=1e-4, atol=1e-5)
    # and the posterior is there
    masks.clear()
    assert (answers(model, x) - model(x).softmax(-1)).abs().max() > 1e-3


SEGMENTS = torch.arange(COUNT) // REAL
TOGETHER = SEGMENTS[:, None] == SEGMENTS
PACKED = {
    "mask": (Own, {"mask": TOGETHER.expand(BATCH, 1, -1, -1)}),
    "attn_mask": (Own, {"attn_mask": TOGETHER & CAUSAL}),
    "lengths": (Own, {"cu_seqlens": torch.tensor([0, REAL, COUNT])}),
    "torch": (Torch, {"attn_mask": ~TOGETHER}),
    "torch, each head": (Torch, {"attn_mask": ~TOGETHER.expand(2 * BATCH, -1, -1)}),
}


@pytest.mark.parametrize("name", PACKED)
def test_several_sequences_in_one_row_are_refused(name: str) -> None:
    kind, masks = PACKED[name]
    with pytest.raises(UserError, match="Pad the sequences"):
        answers(converted(kind(), masks), torch.randn(BATCH, COUNT, WIDTH))


def test_windows_are_not_packed_sequences() -> None:
    away = (torch.arange(COUNT)[:, None] - torch.arange(COUNT)).abs()
    mask = (away <= 1).expand(BATCH, 1, -1, -1)
    found = real_tokens(mask, X)
    assert found is not None
    assert found.all()


@pytest.mark.parametrize(
    ("masks", "match"),
    [
        ({"mask": torch.ones(2 * BATCH, COUNT, COUNT).tril(-1).bool()}, "hides tokens of 3"),
        ({"key_padding_mask": PADDING[:, 1:]}, r"must be \(batch, token\)"),
        ({"key_padding_mask": [True]}, "got list"),
        ({"pad_mask": PADDING}, "pad_mask must be called attention_mask"),
        ({"mask": ~PADDING[:, 1:]}, r"must be of the tokens, \(3, 6\).*got \(3, 5\)"),
        ({"mask": (~PADDING)[:2]}, r"got \(2, 6\)"),
        ({"attn_mask": (~TOGETHER).expand(BATCH, 1, COUNT, COUNT)[..., 1:]}, r"got \(3, 1, 6, 5"),
        ({"attention_mask": TOGETHER}, "Pad the sequences"),
    ],
)
def test_masks_that_cannot_be_read_are_refused(masks: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        sequences(Own(), X, {"x": X} | masks)


def test_pairs_of_as_many_sequences_as_tokens_are_told_by_their_name() -> None:
    x = torch.randn(COUNT, COUNT, WIDTH)
    model = converted(Own(), {"attn_mask": CAUSAL})
    assert_close(answers(model, x), torch.cat([answers(model, each) for each in x.split(2)]))

    with pytest.raises(UserError, match="Call it attn_mask"):
        answers(converted(Own(), {"mask": CAUSAL}), x)


def test_true_may_hide_a_token_or_show_it() -> None:
    real = torch.arange(4) < torch.tensor([4, 2, 1]).unsqueeze(1)
    seen = real[:, None, None, :] & torch.ones(4, 4, dtype=torch.bool).tril()
    x = torch.zeros(3, 4, 2)

    # as MPT says what is hidden
    assert torch.equal(real_tokens(~seen, x), real)
    assert torch.equal(real_tokens(~seen[:1], x[:1]), real[:1])
    assert torch.equal(real_tokens(seen[:1], x[:1]), real[:1])
