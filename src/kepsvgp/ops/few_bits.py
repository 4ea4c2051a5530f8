"""Modules whose weights are held in few bits, by the library that put them there."""

from torch import nn

_LIBRARIES = (
    "torch.ao.nn.quantized", "torchao", "bitsandbytes", "optimum.quanto", "hqq", "awq",
    "auto_gptq", "gptqmodel",
)  # fmt: skip


def has_few_bits(model: nn.Module) -> bool:
    """Whether any module, or the weight in it, is of a library that quantises."""
    return any(
        type(part).__module__.startswith(_LIBRARIES)
        for module in model.modules()
        for part in (module, *module._parameters.values())
    )
