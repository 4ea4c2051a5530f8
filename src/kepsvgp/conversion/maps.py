"""Where the trained query, key and value maps of an attention module are, told by its structure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

# what libraries call them
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
)
_PACKED = ("qkv", "Wqkv", "c_attn", "qkv_proj", "to_qkv", "in_proj")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead")


class Affine(NamedTuple):
    """A trained linear map, where it is no `nn.Linear` of its own."""

    weight: Float[Tensor, "out dim"]
    bias: Float[Tensor, " out"] | None


class Maps(NamedTuple):
    """The maps of self-attention, all heads together."""

    query: Affine
    key: Affine
    value: Affine
    num_heads: int


def find_maps(module: nn.Module) -> Maps | None:
    """The maps of a module that makes queries, keys and values of one input; None of any other."""
    found = _separate(module) or _packed(module)
    if found is None:
        return None
    query, key, value = found
    num_heads = find_heads(module, query.weight.shape[0])
    # fewer key heads than query heads: each serves several
    by_head = query.weight.shape[0] // num_heads
    key, value = (_repeated(each, num_heads, by_head) for each in (key, value))
    same_input = query.weight.shape[1] == key.weight.shape[1] == value.weight.shape[1]
    same_width = query.weight.shape == key.weight.shape
    return Maps(query, key, value, num_heads) if same_input and same_width else None


def queries_and_keys(
    module: nn.Module, x: Float[Tensor, "batch token dim"]
) -> Float[Tensor, "batch head token feature"]:
    """Queries of all heads, then keys of all, as the maps that `find_maps` knows make them now."""
    names = next((each for each in _SEPARATE if _has(module, each)), None)
    if names is not None:
        parts = [getattr(module, name)(x) for name in names[:2]]
    elif isinstance(module, nn.MultiheadAttention):
        packed = F.linear(x, torch.as_tensor(module.in_proj_weight), module.in_proj_bias)
        parts = packed.chunk(3, dim=-1)[:2]
    else:
        name = next(name for name in _PACKED if _has(module, (name,)))
        parts = getattr(module, name)(x).chunk(3, dim=-1)[:2]
    width = parts[0].shape[-1] // find_heads(module, parts[0].shape[-1])
    heads = [each.unflatten(-1, (-1, width)).transpose(-2, -3) for each in parts]
    return torch.cat(heads, dim=-3)


def _has(module: nn.Module, names: Sequence[str]) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in names)


def find_heads(module: nn.Module, width: int) -> int:
    """The number of heads that a module or its configuration names, if it divides the width."""
    for holder in (module, getattr(module, "config", None)):
        for name in _HEADS:
            number = getattr(holder, name, None)
            if isinstance(number, int) and number > 0 and width % number == 0:
                return number
    return 1


def find_width(module: nn.Module) -> int | None:
    """The width of the tokens that enter a module, by the first map in it."""
    for part in module.modules():
        affine = _affine(part)
        if affine is not None:
            return affine.weight.shape[1]
    return None


def _separate(module: nn.Module) -> tuple[Affine, Affine, Affine] | None:
    for names in _SEPARATE:
        maps = [_affine(getattr(module, name, None)) for name in names]
        if all(each is not None for each in maps):
            return tuple(maps)  # pyright: ignore[reportReturnType]
    return None


def _packed(module: nn.Module) -> tuple[Affine, Affine, Affine] | None:
    packed = None
    if isinstance(module, nn.MultiheadAttention):
        if module._qkv_same_embed_dim:
            packed = Affine(module.in_proj_weight, module.in_proj_bias)
    else:
        children = (_affine(getattr(module, name, None)) for name in _PACKED)
        packed = next((each for each in children if each is not None), None)
    shared_keys = getattr(module, "num_key_value_heads", None)
    if packed is None or packed.weight.shape[0] % 3 != 0 or shared_keys is not None:
        return None
    biases = (None, None, None) if packed.bias is None else packed.bias.chunk(3)
    query, key, value = map(Affine, packed.weight.chunk(3), biases)
    return query, key, value


def _affine(module: Any) -> Affine | None:
    """The map of a linear layer, or of one that has its weight transposed (Conv1D of GPT-2).

    Of one with adapters (LoRA of PEFT) it is the sum, as in use.
    """
    base = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    weight = getattr(base, "weight", None)
    if not isinstance(base, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if isinstance(base, nn.Embedding):
        return None
    if base is not module and not (module.merged or module.disable_adapters):
        adapters = (each for each in module.active_adapters if each in module.lora_A)
        weight = weight + sum(module.get_delta_weight(each) for each in adapters)
    bias = getattr(base, "bias", None)
    weight = weight.mT if type(base).__name__ == "Conv1D" else weight
    return Affine(weight, bias if isinstance(bias, Tensor) else None)


def _repeated(affine: Affine, num_heads: int, width: int) -> Affine:
    rows = affine.weight.shape[0]
    if rows == num_heads * width or rows % width != 0 or num_heads % (rows // width) != 0:
        return affine
    times = num_heads // (rows // width)

    def repeat(t: Tensor) -> Tensor:
        return t.unflatten(0, (-1, width)).repeat_interleave(times, dim=0).flatten(0, 1)

    bias = None if affine.bias is None else repeat(affine.bias)
    return Affine(torch.as_tensor(repeat(affine.weight)), bias)
