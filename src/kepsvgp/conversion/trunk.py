"""Monte Carlo samples of any model, with the part before the first stochastic layer run once.

A model of another library takes no sample axis: it is called once for every sample. Its blocks
before the first stochastic layer give the same output every time, so they are made to remember
it. This is done on a copy of the model that shares all modules and parameters but those blocks,
so nothing of the model is touched and threads can share it. A remembered output is given back
only for inputs equal to the ones it was made from; both are copies, which nothing that works in
place can change.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from kepsvgp.attention.base import PenalisedLayer

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_PLAIN = (str, int, float, bool, torch.dtype, torch.device, type(None))


class _Sample:
    """How far the model is in the sample at hand."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """No block has run, and nothing random has happened."""
        self.calls: Counter[nn.Module] = Counter()
        self.is_random = False


def with_remembered_trunk(model: nn.Module) -> Callable[..., Any]:
    """Calls of `model`, one a sample, that run the blocks before its first stochastic layer once.

    The stochastic layer is the first that the model lists.
    """
    for name, module in model.named_modules():
        if isinstance(module, PenalisedLayer) and module.is_stochastic:
            sample = _Sample()
            return partial(_begun, sample, _copy_along(model, name.split("."), sample))
    return model


def _begun(sample: _Sample, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    sample.begin()
    return model(*args, **kwargs)


def _copy_along(module: nn.Module, path: list[str], sample: _Sample) -> nn.Module:
    """Copies the modules on the way to the stochastic layer, and their earlier siblings."""
    if not any(isinstance(m, nn.ModuleList | nn.Sequential) for m in module.modules()):
        return module
    copy = _shallow_copy(module)
    child = copy._modules[path[0]]
    assert child is not None
    if len(path) > 1:
        child = copy._modules[path[0]] = _copy_along(child, path[1:], sample)
    if isinstance(module, nn.ModuleList | nn.Sequential):
        copy._modules[path[0]] = _noticed(child, sample)
        for name, block in module.named_children():
            if name == path[0]:
                break
            copy._modules[name] = _remembering(block, sample)
    return copy


def _noticed(block: nn.Module, sample: _Sample) -> nn.Module:
    """A copy of the block with the stochastic layer: what runs after it is random."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = block.forward(*args, **kwargs)
        sample.is_random = True
        return output

    return _shallow_copy(block, forward)


def _remembering(block: nn.Module, sample: _Sample) -> nn.Module:
    """A copy of a block that computes only what it has not computed for an earlier sample."""
    # by the number of the call, for blocks that a model runs several times
    memory: dict[int, tuple[Any, Any]] = {}

    def forward(*args: Any, **kwargs: Any) -> Any:
        given, number = (args, kwargs), sample.calls[block]
        sample.calls[block] += 1
        if sample.is_random:
            return block.forward(*args, **kwargs)
        if number in memory and _equal(memory[number][0], given):
            return _copied(memory[number][1])
        kept = _copied(given)
        output = block.forward(*args, **kwargs)
        # a block that changes what it is given does more than its output tells
        if _equal(kept, given) and _can_be_copied(output):
            memory[number] = kept, _copied(output)
        return output

    return _shallow_copy(block, forward)


def _shallow_copy(module: ModuleT, forward: Callable[..., Any] | None = None) -> ModuleT:
    copy = module.__new__(type(module))
    copy.__dict__ = module.__dict__ | {"_modules": module._modules.copy()}
    if forward is not None:
        copy.__dict__["forward"] = forward
    return copy


def _can_be_copied(values: Any) -> bool:
    return all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in tree_leaves(values))


def _copied(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, values)


def _equal(first: Any, second: Any) -> bool:
    leaves, structure = tree_flatten(first)
    others, other_structure = tree_flatten(second)
    return structure == other_structure and all(map(_is_same, leaves, others))


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        same_kind = first.shape == second.shape and first.dtype == second.dtype
        # a traced graph has no values to compare; there the blocks are taken at their word
        return same_kind and (torch.compiler.is_compiling() or torch.equal(first, second))
    return isinstance(first, _PLAIN) and isinstance(second, _PLAIN) and first == second
