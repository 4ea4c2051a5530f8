"""Monte Carlo samples of any model, with the part before the first stochastic layer run once.

A model of another library takes no sample axis: it is called once for every sample. Its blocks
before the first stochastic layer give the same output every time, so they are made to remember
it. This is done on a copy of the model that shares all modules and parameters but those blocks,
so nothing of the model is touched and threads can share it. A remembered output is given back
only for inputs equal to the ones it was made from, and only while nothing has changed either in
place.
"""

import operator
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from kepsvgp.attention.base import PenalisedLayer
from kepsvgp.inference.first_token import FirstToken, shallow_copy

_PLAIN = (str, int, float, bool, slice, torch.dtype, torch.device, type(None))


class _Sample:
    """How far the model is in the sample at hand."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """No block has run, and nothing random has happened."""
        self.calls: Counter[nn.Module] = Counter()
        self.is_random = False


class Sampled:
    """Calls of a model, one a sample, that run the blocks before its first draws once."""

    def __init__(self, model: nn.Module, path: list[str], layer: nn.Module) -> None:
        self._sample = _Sample()
        self._first = FirstToken(model, path, layer)
        self._model = _copy_along(model, path, self._sample, self._first.around)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output for the draws at hand."""
        self._sample.begin()
        self._first.begin()
        return self._model(*args, **kwargs)

    def first_tokens(
        self, call: Callable[[Any], Tensor], num_samples: int, first: Tensor
    ) -> Tensor | None:
        """What `call` makes of the model, all samples at once, if the first token is enough."""
        return self._first.of_all_samples(partial(call, self), num_samples, first)


def _has_blocks(module: nn.Module) -> bool:
    return any(isinstance(part, nn.ModuleList | nn.Sequential) for part in module.modules())


def with_remembered_trunk(model: nn.Module) -> Sampled | nn.Module:
    """Calls of `model`, one a sample, that run the blocks before its first stochastic layer once.

    The stochastic layer is the first that the model lists.
    """
    for name, module in model.named_modules():
        if isinstance(module, PenalisedLayer) and module.is_stochastic:
            return Sampled(model, name.split("."), module)
    return model


def _copy_along(
    module: nn.Module,
    path: list[str],
    sample: _Sample,
    around: Callable[[nn.Module, list[str]], nn.Module],
) -> nn.Module:
    """Copies the modules on the way to the stochastic layer, and their earlier siblings."""
    if not _has_blocks(module):
        return around(module, path)
    copy = shallow_copy(module)
    child = copy._modules[path[0]]
    assert child is not None
    if len(path) > 1:
        child = copy._modules[path[0]] = _copy_along(child, path[1:], sample, around)
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

    return shallow_copy(block, forward)


def _remembering(block: nn.Module, sample: _Sample) -> nn.Module:
    """A copy of a block that computes only what it has not computed for an earlier sample."""
    # by the number of the call, for blocks that a model runs several times
    memory: dict[int, _Call] = {}

    def forward(*args: Any, **kwargs: Any) -> Any:
        given, number = (args, kwargs), sample.calls[block]
        sample.calls[block] += 1
        if sample.is_random:
            return block.forward(*args, **kwargs)
        if number in memory and memory[number].can_stand_for(given):
            return _own(memory[number].output)
        before = _seen(given)
        output = block.forward(*args, **kwargs)
        kept = _own(output)
        after = _seen(kept)
        # a block that changes what it is given does more than its output tells
        if before is not None and after is not None and before.is_unchanged:
            memory[number] = _Call(before, kept, after)
        return output

    return shallow_copy(block, forward)


class _Seen(NamedTuple):
    """Values as they were at some time."""

    leaves: list[Any]
    structure: Any
    versions: list[int | None]

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has changed the tensors in place."""
        return [_version(leaf) for leaf in self.leaves] == self.versions


class _Call(NamedTuple):
    """One call of a block."""

    inputs: _Seen
    output: Any
    outputs: _Seen

    def can_stand_for(self, given: Any) -> bool:
        """Whether a call with these arguments would give the same output."""
        leaves, structure = tree_flatten(given)
        same_output = all(map(operator.is_, tree_leaves(self.output), self.outputs.leaves))
        return (
            structure == self.inputs.structure
            and self.inputs.is_unchanged
            and self.outputs.is_unchanged
            and same_output
            and all(map(_is_same, self.inputs.leaves, leaves))
        )


def _seen(values: Any) -> _Seen | None:
    """None where a change in place could not be noticed later."""
    leaves, structure = tree_flatten(values)
    if not all(isinstance(leaf, _PLAIN) or _has_version(leaf) for leaf in leaves):
        return None
    return _Seen(leaves, structure, [_version(leaf) for leaf in leaves])


def _own(output: Any) -> Any:
    """In a traced graph a copy, as nothing there tells of changes in place."""
    if not torch.compiler.is_compiling():
        return output
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)


def _has_version(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (torch.compiler.is_compiling() or not leaf.is_inference())


def _version(leaf: Any) -> int | None:
    is_tensor = isinstance(leaf, Tensor) and not torch.compiler.is_compiling()
    return leaf._version if is_tensor else None


def _is_same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        same_kind = first.shape == second.shape and first.dtype == second.dtype
        # a traced graph has no values to compare; there the blocks are taken at their word
        return same_kind and (torch.compiler.is_compiling() or torch.equal(first, second))
    return isinstance(first, _PLAIN) and isinstance(second, _PLAIN) and first == second
