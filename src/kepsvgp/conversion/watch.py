"""Attention modules of a converted model that stay, looked at for what is foreign to it.

What tells foreign inputs apart is seen at the first and the middle layer of those like the last
converted one (`kepsvgp.attention.novelty`). There a child called `watch` and a hook before the
module show what enters it, while somebody looks, and change nothing.
"""

import inspect
import re
from contextlib import suppress
from typing import Any

from torch import nn

from kepsvgp.attention.base import used_module
from kepsvgp.attention.novelty import ObservedAttention
from kepsvgp.conversion.base import WATCH
from kepsvgp.conversion.maps import queries_and_keys
from kepsvgp.conversion.masks import sequences
from kepsvgp.conversion.mean import converted_layers, tokens_of
from kepsvgp.conversion.selection import candidates
from kepsvgp.conversion.torch_nn import without_nested_tensors
from kepsvgp.errors import UserError


class Watch(ObservedAttention):
    """Marks a module whose input is looked at; without parameters."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.arguments = arguments


def watch_others(model: nn.Module) -> None:
    """Looks at the first and the middle attention module of the kind that was converted last."""
    for module in model.modules():
        if {"kep", WATCH} <= module._modules.keys():
            delattr(module, WATCH)
    *_, last = converted_layers(model)
    kind = re.sub(r"\d+", "#", last)
    names = [c.name for c in candidates(model, "attention") if re.sub(r"\d+", "#", c.name) == kind]
    if last in names:
        # the lower one of two
        middle = names[(len(names) - 1) // 2]
        for name in dict.fromkeys([names[0], middle]):
            watch(model, name, is_middle=name == middle)


def watch(model: nn.Module, name: str, *, is_middle: bool) -> None:
    """Looks at a module, converted or not."""
    module = model.get_submodule(name)
    without_nested_tensors(model, [module])
    layer = _observed(module)
    if layer is None:
        layer = Watch(tuple(inspect.signature(module.forward).parameters))
        module.add_module(WATCH, layer)
        module.register_forward_pre_hook(look, with_kwargs=True)
    layer.is_middle = is_middle


def watched_layers(model: nn.Module) -> dict[str, bool]:
    """The names of the modules that are looked at, and whether each is the middle one."""
    layers = ((name, _observed(module)) for name, module in model.named_modules())
    return {
        name: layer.is_middle
        for name, layer in layers
        if layer is not None and layer.is_shown and (isinstance(layer, Watch) or layer.is_middle)
    }


def _observed(module: nn.Module) -> ObservedAttention | None:
    """What shows the input of a module, if it has it."""
    children = (module._modules.get(name) for name in ("kep", WATCH))
    used: Any = next((used_module(child) for child in children if child is not None), None)
    return used


def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The hook: shows what enters the module to whom observes it."""
    layer: Any = module._modules.get(WATCH)
    if layer is None or not layer.is_observed:
        return
    given = dict(zip(layer.arguments, args, strict=False)) | kwargs
    # nobody asked for this layer: where it cannot be read, others are
    with suppress(UserError):
        x, mask = sequences(module, tokens_of(module, layer, given), given)
        layer.observe(x, lambda: queries_and_keys(module, x), mask)
