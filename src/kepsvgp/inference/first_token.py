"""The first token alone, carried through all samples in one pass.

Where the only draws are those of the attention in the last block, and nothing reads another token
than the first of what follows, that token is enough. Whether it is so is tried: the first sample
must come out as it does for all tokens.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

# how far logits of float32 may differ, relative to the largest, by the order of their sums
SAME = 1e-5


class FirstToken:
    """The last block, run for all tokens of a sample or for the first token of all samples."""

    def __init__(self, model: nn.Module, path: list[str], layer: nn.Module) -> None:
        # while the first token is alone, how many samples there are
        self._samples: int | None = None
        # in the last whole pass, what the layer was given or, where its draw is added, what the
        # module around it was given and said without it
        self._kept: list[tuple[Any, ...]] = []
        self._layer: Any = layer
        self._is_added = hasattr(layer, "add_first")
        self._is_possible = (
            getattr(layer, "can_draw_first", False)
            and _is_in_last_block(model, path)
            and _is_batch_first(model.get_submodule(".".join(path[:-1])), self._is_added)
        )

    def begin(self) -> None:
        """A pass begins."""
        if self._samples is None:
            self._kept.clear()

    def of_all_samples(
        self, call: Callable[[], Tensor], num_samples: int, first: Float[Tensor, "example class"]
    ) -> Float[Tensor, "sample example class"] | None:
        """What `call` makes of all samples at once, if the first is what a whole pass gave."""
        exact = first.dtype in (torch.float32, torch.float64)
        # a second call of the module would depend on the draws of the first
        if not self._is_possible or not exact or len(self._kept) != 1:
            return None
        if torch.compiler.is_compiling():
            return None
        self._samples = num_samples
        try:
            found = call()
        # what reads other tokens does not find them, and says so in its own way
        except Exception:
            return None
        finally:
            self._samples = None
        if found.shape != (num_samples * len(first), *first.shape[1:]):
            return None
        found = found.unflatten(0, (num_samples, -1))
        size = max(1.0, first.abs().max().item())
        return found if torch.allclose(found[0], first, rtol=0, atol=SAME * size) else None

    def around(self, block: nn.Module, path: list[str]) -> nn.Module:
        """The block with the draws, as a copy that can be called for its first token alone."""
        # a forward of its own may call anything
        if not self._is_possible or "forward" in vars(block):
            return block
        *outer, last = path[:-1] if self._is_added else path
        copy = inner = shallow_copy(block)
        for name in outer:
            child = inner._modules[name]
            assert child is not None
            inner._modules[name] = inner = shallow_copy(child)
        drawing = inner._modules[last]
        assert drawing is not None
        inner._modules[last] = self._attention(drawing) if self._is_added else self._drawing()

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._samples is not None:
                hidden, *others = args
                args = (hidden[:, :1].repeat(self._samples, 1, 1), *others)
            return type(block).forward(copy, *args, **kwargs)

        copy.__dict__["forward"] = forward
        return copy

    def _drawing(self) -> nn.Module:
        """The layer itself, which keeps what it is given."""
        layer = self._layer

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._samples is None:
                self._kept.append((args, kwargs))
                return layer.forward(*args, **kwargs)
            args, kwargs = self._kept[0]
            return layer.first_token(*args, **kwargs, num_samples=self._samples).flatten(0, 1)

        return shallow_copy(layer, forward)

    def _attention(self, module: nn.Module) -> nn.Module:
        """The module around the draws, which keeps what it says without them."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            is_whole = self._samples is None
            return module.forward(*args, **kwargs) if is_whole else self._kept[0][-1]

        def add(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
            if self._samples is not None:
                return self._layer.add_first(module, *self._kept[0], self._samples)
            self._kept.append((args, kwargs, output))
            return self._layer.add(module, args, kwargs, output)

        copy = shallow_copy(module, forward)
        # in the place of the hook that adds the draw: without any, torch would call fused code
        copy._forward_hooks = OrderedDict.fromkeys(module._forward_hooks, add)
        return copy


def _is_batch_first(attention: nn.Module, is_added: bool) -> bool:
    """Whether sequences are along the first axis, and no hook but that of a draw that is added."""
    has_one_hook = len(attention._forward_hooks) == 1
    return getattr(attention, "batch_first", True) and (has_one_hook or not is_added)


def _is_in_last_block(model: nn.Module, path: list[str]) -> bool:
    """Whether no block follows the one with the stochastic layer, in any list on the way to it."""
    below = 0
    for depth, name in enumerate(path):
        around = model.get_submodule(".".join(path[:depth]))
        if isinstance(around, nn.ModuleList | nn.Sequential):
            if name != list(around._modules)[-1]:
                return False
            below = len(path) - depth
    # the block, the attention in it, and the layer
    return below > 2


def shallow_copy(module: ModuleT, forward: Callable[..., Any] | None = None) -> ModuleT:
    """The same module with children of its own, and a forward of its own where one is given."""
    copy = module.__new__(type(module))
    copy.__dict__ = module.__dict__ | {"_modules": module._modules.copy()}
    if forward is not None:
        copy.__dict__["forward"] = forward
    return copy
