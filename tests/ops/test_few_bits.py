import families
import pytest
import torch
from torch import Tensor, nn

from kepsvgp.ops.few_bits import has_few_bits


class Packed(nn.Module):
    """A linear map as a library that nobody knows would keep it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(3, 4).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x).mT


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_packed_weights_are_few_bits_whoever_packed_them(dtype: torch.dtype) -> None:
    assert has_few_bits(nn.Sequential(nn.Linear(2, 4), Packed(dtype)))


@pytest.mark.parametrize("name", ["bert", "gpt2", "swin"])
def test_masks_and_places_are_no_weights(name: str) -> None:
    assert not has_few_bits(families.make(name).model)
