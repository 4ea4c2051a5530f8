"""Monte Carlo samples of any model, with the part before the first stochastic layer run once.

A model of another library takes no sample axis: it is called once for every sample. Its blocks
before the first stochastic layer give the same output every time, so they are made to remember
it. This is done on a copy of the model that shares all modules and parameters but those blocks,
so nothing of the model is touched and threads can share it. A remembered output is given back
only for inputs equal to the ones it was made from.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedLayer

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def with_remembered_trunk(model: nn.Module) -> nn.Module:
    """A copy of `model` whose blocks before the first stochastic layer remember their output."""
    for name, module in model.named_modules():
        if isinstance(module, PenalisedLayer) and module.is_stochastic:
            return _copy_along(model, name.split("."))
    return model


def _copy_along(module: nn.Module, path: list[str]) -> nn.Module:
    """Copies the modules on the way to the stochastic layer, and their earlier siblings."""
    if not any(isinstance(m, nn.ModuleList | nn.Sequential) for m in module.modules()):
        return module
    copy = _shallow_copy(module)
    child = copy._modules[path[0]]
    assert child is not None
    if len(path) > 1:
        copy._modules[path[0]] = _copy_along(child, path[1:])
    if isinstance(module, nn.ModuleList | nn.Sequential):
        for name, block in module.named_children():
            if name == path[0]:
                break
            copy._modules[name] = _remembering(block)
    return copy


def _remembering(block: nn.Module) -> nn.Module:
    """A copy of a block that computes only what it has not computed just before."""
    copy = _shallow_copy(block)
    memory: list[tuple[Any, Any, Any]] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        if memory:
            inputs, output, version = memory[0]
            # what a later block has changed in place is no longer our output
            if _equal(inputs, (args, kwargs)) and _version(output) == version:
                return output
        output = block.forward(*args, **kwargs)
        memory[:] = [((args, kwargs), output, _version(output))]
        return output

    copy.forward = forward
    return copy


def _version(output: Any) -> Any:
    if isinstance(output, Tensor):
        return None if output.is_inference() or torch.compiler.is_compiling() else output._version
    return [_version(item) for item in output] if isinstance(output, tuple | list) else None


def _shallow_copy(module: ModuleT) -> ModuleT:
    copy = module.__new__(type(module))
    copy.__dict__ = module.__dict__ | {"_modules": module._modules.copy()}
    return copy


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        same_kind = first.shape == second.shape and first.dtype == second.dtype
        # a traced graph has no values to compare; there the blocks are taken at their word
        return same_kind and (torch.compiler.is_compiling() or torch.equal(first, second))
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(map(_equal, first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    plain = (str, int, float, bool, torch.dtype, torch.device)
    return isinstance(first, plain) and isinstance(second, plain) and first == second
