"""Modules whose weights are held in few bits: small integers, or types of the library that does."""

import torch
from torch import Tensor, nn

_LIBRARIES = (
    "torch.ao.nn.quantized", "torchao", "bitsandbytes", "optimum.quanto", "hqq", "awq",
    "auto_gptq", "gptqmodel",
)  # fmt: skip


# matrices of these are packed weights; masks are of bool, and places of int64
_PACKED = (torch.int8, torch.uint8, torch.int16, torch.int32)


def has_few_bits(model: nn.Module) -> bool:
    """Whether any module or weight is quantised."""
    return any(
        type(part).__module__.startswith(_LIBRARIES)
        or (isinstance(part, Tensor) and part.ndim > 1 and part.dtype in _PACKED)
        for module in model.modules()
        for part in (module, *module._parameters.values(), *module._buffers.values())
    )
