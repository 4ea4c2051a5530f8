"""What the stochastic layers share: penalties for the objective, and draws that can be fixed."""

import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.errors import UserError
from kepsvgp.ops.private import is_in_backward


class Penalties(NamedTuple):
    """What a layer adds to the objective, unweighted."""

    kl: Float[Tensor, ""]
    """KL[q(u) ‖ p(u)], summed over heads and values: once for a whole training set."""
    ksvd: Float[Tensor, ""]
    """KSVD penalty of the last training pass, the sum over all that ran in it."""
    sequence_kl: Float[Tensor, ""] | None = None
    """KL of a layer that has a process of its own for every sequence: the mean over the last
    training pass. It counts as often as there are training examples."""


class WholeLinear(nn.modules.linear.NonDynamicallyQuantizableLinear):
    """A map of the scores or the draws, which `quantize_dynamic` and torchao leave whole."""


class _Mark:
    """A hook that lives as long as the graph of an output, and tells who trains without terms."""

    def __init__(self, is_recalled: bool) -> None:
        self.is_recalled = is_recalled

    def __call__(self, *_: Any) -> None:
        """Runs in the backward pass."""
        if not self.is_recalled:
            _warn_of_no_terms()


def _warn_of_no_terms() -> None:
    """Python shows the same warning once."""
    warnings.warn(
        "layers with a posterior are trained without their KL and KSVD penalty: take "
        "the loss from kepsvgp.loss, or train with KEPTrainer or KEPModule. Layers that "
        "are not to be trained are frozen by requires_grad_(False).",
        stacklevel=1,
    )


class PenalisedLayer(nn.Module):
    """A layer with terms for the objective and, if it is stochastic, something to draw.

    A call in training mode may leave something behind, with `remember`; `recall` takes it away
    again, so that no graph outlives its step. It is not part of the layer's state: copies lack it.
    """

    is_stochastic: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._left_behind: list[tuple[Any, weakref.ref[_Mark] | None]] = []
        self._had_gradients = True
        self._held_draws: Tensor | None = None

    def penalties(self) -> Penalties:
        """The terms of the last training pass, which is forgotten by the call."""
        raise NotImplementedError

    def draw(self, num_samples: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws that do not depend on the input, sample axis first."""
        raise NotImplementedError

    def remember(self, left_behind: Any, output: Tensor) -> None:
        """Keeps what the penalties of a call need, beside that of other calls in the pass.

        Other calls are of this pass while the graph of their output lives. Compiled code and
        passes without gradients have none to tell: there the last call counts.
        Gradient checkpointing repeats a pass inside the backward pass, when the objective has
        its terms already; remembering that one would keep its graph alive.
        """
        if is_in_backward():
            # reentrant checkpointing: the pass before had no gradients, hence no mark
            if self._left_behind and not self.can_train:
                _warn_of_no_terms()
            return
        self._had_gradients = torch.is_grad_enabled()
        if torch.compiler.is_compiling() or output.grad_fn is None:
            self._left_behind = [(left_behind, None)]
            return
        mark = _Mark(not any(p.requires_grad for p in self.parameters()))
        output.grad_fn.register_hook(mark)
        self._left_behind = [*self._of_this_pass(), (left_behind, weakref.ref(mark))]

    def _of_this_pass(self) -> list[tuple[Any, weakref.ref[_Mark] | None]]:
        return [call for call in self._left_behind if call[1] is not None and call[1]() is not None]

    @property
    def can_train(self) -> bool:
        """Whether the last training pass had gradients, or the layer has no use for them."""
        return self._had_gradients or not any(p.requires_grad for p in self.parameters())

    def recall(self) -> list[Any]:
        """What the calls of the last training pass left behind; a second time there is nothing."""
        # the last call counts even if nobody has kept its output
        calls = self._of_this_pass() or self._left_behind[-1:]
        left_behind, self._left_behind = [value for value, _ in calls], []
        for mark in (ref() for _, ref in calls if ref is not None):
            if mark is not None:
                mark.is_recalled = True
        if not left_behind:
            raise UserError(
                "penalties must follow a forward pass in training mode, once; there was none "
                "since the last call. Call model.train() and the model before the loss. LayerDrop, "
                "which leaves layers out, must be off: model.config.layerdrop = 0."
            )
        return left_behind

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_left_behind": [], "_held_draws": None}


class PenalisedAttention(PenalisedLayer):
    """A penalised layer with the signature of attention; see `KEPAttention.forward`."""


def penalised_layers(model: nn.Module) -> list[PenalisedLayer]:
    """The layers of any model that add to the objective, each once, in order of registration."""
    return [module for module in used_modules(model) if isinstance(module, PenalisedLayer)]


def used_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, without the copies that PEFT keeps beside those in use."""
    spare: set[nn.Module] = set()
    for module in model.modules():
        used = used_module(module)
        if used is not module:
            spare |= set(module.modules()) - set(used.modules())
    return [module for module in model.modules() if module not in spare]


def used_module(module: nn.Module) -> nn.Module:
    """A module itself, or the copy in use where PEFT keeps several (`modules_to_save`)."""
    if not {"original_module", "modules_to_save"} <= module._modules.keys():
        return module
    wrapper: Any = module
    if wrapper.disable_adapters or not wrapper.active_adapters:
        return wrapper.original_module
    return wrapper.modules_to_save[wrapper.active_adapters[0]]


def stochastic_layers(model: nn.Module) -> list[PenalisedLayer]:
    """The stochastic layers of any model, each once, in the order of registration."""
    return [layer for layer in penalised_layers(model) if layer.is_stochastic]


class OfEachExample(NamedTuple):
    """Values of a layer's random variables for every example of a batch, in place of samples."""

    values: Float[Tensor, "example ..."]

    def for_sequences(self, count: int) -> Float[Tensor, "sequence ..."]:
        """For sequences that follow each other, as many for each example, such as windows."""
        if count % len(self.values) != 0:
            raise not_apart()
        return self.values.repeat_interleave(count // len(self.values), dim=0)


def not_apart() -> UserError:
    """The error for a layer that mixes the examples of a batch."""
    return UserError(
        "converted attention must take the examples along its first axis, (batch, token, width); "
        "what it draws for one reaches the others. Convert a module that does."
    )


Draws = Tensor | OfEachExample

# Draws in force in this thread, by layer. A context variable and no attribute of the layer, so
# that threads can predict with one model at the same time. Compiled code cannot read context
# variables, so the layers hold their draws too; a compiled model serves one thread at a time.
_DRAWS: ContextVar[Mapping[nn.Module, Draws] | None] = ContextVar("draws", default=None)
_HOLDS: ContextVar[bool] = ContextVar("holds", default=True)


def draws_of(layer: nn.Module) -> Any:
    """The draws that `fixed_draws` holds for `layer`, or None."""
    # unlike `is_compiling`, of this code and not of what any other thread may compile
    if torch.compiler.is_dynamo_compiling():
        return getattr(layer, "_held_draws", None)
    draws = _DRAWS.get()
    return None if draws is None else draws.get(layer)


@contextmanager
def use_draws(draws: Mapping[nn.Module, Draws]) -> Iterator[Mapping[nn.Module, Draws]]:
    """Within the block, the named layers use these draws and make none of their own."""
    # what this thread's outer block holds, and never what another thread has left on the layer
    outer = _DRAWS.get() or {}
    token = _DRAWS.set(draws)
    _hold(draws)
    try:
        yield draws
    finally:
        _DRAWS.reset(token)
        _hold({layer: outer.get(layer) for layer in draws})


@contextmanager
def draws_on_layers(are_held: bool) -> Iterator[None]:
    """Within the block, layers do or do not hold their draws, for compiled code to read."""
    token = _HOLDS.set(are_held)
    try:
        yield
    finally:
        _HOLDS.reset(token)


def _hold(draws: Mapping[nn.Module, Draws | None]) -> None:
    if not _HOLDS.get():
        return
    for layer, u in draws.items():
        layer._held_draws = u  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]


@contextmanager
def fixed_draws(
    model: nn.Module, num_samples: int, *, generator: torch.Generator | None = None
) -> Iterator[Mapping[nn.Module, Tensor]]:
    """Within the block, all stochastic layers of `model` use the same `num_samples` draws.

    The draws depend on the generator and the model alone, not on the data, so a prediction does
    not depend on the batch it came in.
    """
    draws: dict[nn.Module, Tensor] = {
        layer: layer.draw(num_samples, generator=generator) for layer in stochastic_layers(model)
    }
    with use_draws(draws):
        yield draws


def repeat_mask(
    mask: Bool[Tensor, "batch token"] | None, sequences: Float[Tensor, "sequence ..."]
) -> Bool[Tensor, "sequence token"] | None:
    """The mask of every sequence; sizes are read off shapes, which may be symbolic, not `len`."""
    if mask is None or mask.shape[0] == sequences.shape[0]:
        return mask
    return mask.repeat(sequences.shape[0] // mask.shape[0], 1)
