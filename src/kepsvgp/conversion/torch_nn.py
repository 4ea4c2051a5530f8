"""Conversion of `torch.nn.MultiheadAttention`, alone or in a `TransformerEncoder`."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from kepsvgp.conversion.base import ConvertedAttention
from kepsvgp.errors import UserError


class ConvertedMultiheadAttention(ConvertedAttention):
    """Takes the place of an `nn.MultiheadAttention` that serves as self-attention.

    Where attention weights are asked for, None is returned in their stead: there are none.
    """

    # `nn.TransformerEncoderLayer` reads these before its fused path, which would pass us by.
    in_proj_bias: Tensor | None = None
    _qkv_same_embed_dim = False

    def __init__(self, module: nn.MultiheadAttention, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.embed_dim = module.embed_dim
        self.num_heads = module.num_heads
        self.batch_first = module.batch_first
        self.dropout = module.dropout

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether `module` is a multi-head attention of torch."""
        return isinstance(module, nn.MultiheadAttention)

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Cross-attention by its widths, and the extra tokens of old."""
        assert isinstance(module, nn.MultiheadAttention)
        if not module._qkv_same_embed_dim:
            return "its keys or values have another width, so it is cross-attention"
        if module.bias_k is not None or module.add_zero_attn:
            return "it appends tokens of its own (add_bias_kv or add_zero_attn)"
        return None

    @classmethod
    def output_of(cls, module: nn.Module) -> nn.Module:
        """The output projection."""
        return module.get_submodule("out_proj")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As `nn.MultiheadAttention`, for self-attention with a padding mask."""
        if query is not key or key is not value:
            raise UserError(
                "query, key and value must be the same tensor: this layer was converted, and its "
                "kernel is that of one sequence with itself. Leave cross-attention unconverted."
            )
        if attn_mask is not None or is_causal:
            raise UserError(
                "attn_mask and is_causal must be left out: this layer was converted, and its "
                "kernel is one of all tokens with all. Leave causal attention unconverted."
            )
        unbatched = query.ndim == 2
        x = query.unsqueeze(0) if unbatched else query
        x = x if self.batch_first or unbatched else x.transpose(0, 1)
        mask = None if key_padding_mask is None else _is_real(key_padding_mask)
        if mask is not None and unbatched:
            mask = mask.unsqueeze(0)
        out = self.attend(x, mask)
        if unbatched:
            return out.squeeze(0), None
        return (out if self.batch_first else out.transpose(0, 1)), None

    def tokens_of(self, output: Any) -> Tensor:
        """The tokens, batch first, of `(output, weights)`."""
        out = output[0]
        if out.ndim == 2:
            return out.unsqueeze(0)
        return out if self.batch_first else out.transpose(0, 1)


def _is_real(padding: Shaped[Tensor, "*batch token"]) -> Bool[Tensor, "*batch token"]:
    """Padding is True, or −∞ once torch has made a float of it."""
    return ~padding if padding.dtype == torch.bool else padding == 0


def without_nested_tensors(model: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Keeps `nn.TransformerEncoder`s from passing ragged tensors to these of their modules."""
    chosen = set(modules)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and chosen.intersection(encoder.modules()):
            encoder.use_nested_tensor = False
