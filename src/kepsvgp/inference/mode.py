"""A model in another mode, without touching the one that others may be using.

Modules have their mode as an attribute, so switching it for a prediction would change the model
under the feet of other threads. Instead the tree of modules is copied, and all tensors are
shared; lists, dicts, partials and bound methods that lead to modules lead to their copies. What
cannot be copied so (compiled code, wrappers that bind the original) is switched where it is, by
one thread at a time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from types import MethodType
from typing import Any

from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from kepsvgp.attention.base import draws_on_layers
from kepsvgp.errors import UserError

_ONE_AT_A_TIME = threading.RLock()

# kept by every module; the copy may get hooks and children of its own
_OWN_DICTS = ("_parameters", "_buffers", "_modules")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode: itself where it is, else a copy that shares its tensors."""
    bound = is_bound(model)
    with _ONE_AT_A_TIME:
        # what is compiled shares its modules, so another thread may have switched these
        training = [module for module in model.modules() if module.training]
        if bound:
            # compiled code reads its draws off the layers, which threads share
            with draws_on_layers(True):
                yield from _switched(model, training)
            return
    with draws_on_layers(False):
        yield copy_of(model, lambda module: False) if training else model


def _switched(model: nn.Module, training: list[nn.Module]) -> Iterator[nn.Module]:
    for module in training:
        module.training = False
    try:
        yield model
    finally:
        for module in training:
            module.training = True


def is_bound(model: nn.Module) -> bool:
    """Whether calling a copy would call the original: compiled, wrapped or patched modules."""
    return any(
        "forward" in vars(module)
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module, "_orig_mod")
        or type(module).__module__.startswith(("torch.jit", "torch.nn.parallel"))
        or type(module).__name__.startswith("FSDP")
        for module in model.modules()
    )


def own_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode that may be changed; refused where it would call the original."""
    if is_bound(model):
        raise UserError(
            "model must be the model itself, not compiled or wrapped; this one is. Give what was "
            "compiled, such as model._orig_mod."
        )
    return copy_of(model, lambda module: False)


def frozen(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode through which gradients reach inputs and draws alone."""
    copy = own_copy(model)
    for module in copy.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach(), requires_grad=False)
    return copy


def copy_of(model: nn.Module, is_training: Callable[[nn.Module], bool]) -> nn.Module:
    """The same modules, parameters and buffers, in modes of their own."""
    modules = set(model.modules())
    copies: dict[nn.Module, nn.Module] = {}

    def renewed(value: Any) -> Any:
        # lists, dicts and the like that lead to no module stay the same ones
        leaves, shape = tree_flatten(value)
        made = [renewed_leaf(leaf) for leaf in leaves]
        return value if all(map(is_, made, leaves)) else tree_unflatten(made, shape)

    def renewed_leaf(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            return copied(leaf) if leaf in modules else leaf
        if isinstance(leaf, MethodType):
            return MethodType(leaf.__func__, renewed(leaf.__self__))
        if isinstance(leaf, partial):
            return partial(renewed(leaf.func), *renewed(leaf.args), **renewed(leaf.keywords))
        return leaf

    def copied(module: nn.Module) -> nn.Module:
        # one module in two places stays one
        if module not in copies:
            copy = copies[module] = object.__new__(type(module))
            copy.__dict__.update(
                {
                    name: value.copy()
                    if name in _OWN_DICTS or name.endswith("_hooks")
                    else renewed(value)
                    for name, value in vars(module).items()
                }
            )
            for name, child in module._modules.items():
                copy._modules[name] = None if child is None else copied(child)
            copy.training = is_training(module)
        return copies[module]

    return copied(model)
