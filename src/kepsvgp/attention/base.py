"""What the stochastic layers share: penalties for the objective, and draws that can be fixed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.errors import UserError


class Penalties(NamedTuple):
    """What a layer adds to the objective, unweighted."""

    kl: Float[Tensor, ""]
    """KL[q(u) ‖ p(u)], summed over heads and values: once for a whole training set."""
    ksvd: Float[Tensor, ""]
    """KSVD penalty of the last training pass."""
    sequence_kl: Float[Tensor, ""] | None = None
    """KL of a layer that has a process of its own for every sequence: the mean over the last
    training pass. It counts as often as there are training examples."""


class PenalisedAttention(nn.Module):
    """An attention layer with terms for the objective and, if stochastic, something to draw."""

    is_stochastic: ClassVar[bool] = True

    def penalties(self) -> Penalties:
        """The terms of the last training pass, which is forgotten by the call."""
        raise NotImplementedError

    def draw(self, num_samples: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws that do not depend on the input, sample axis first."""
        raise NotImplementedError


def penalised_layers(model: nn.Module) -> list[PenalisedAttention]:
    """The layers of any model that add to the objective, each once, in order of registration."""
    return [module for module in model.modules() if isinstance(module, PenalisedAttention)]


def stochastic_layers(model: nn.Module) -> list[PenalisedAttention]:
    """The stochastic layers of any model, each once, in the order of registration."""
    return [layer for layer in penalised_layers(model) if layer.is_stochastic]


def recomputing() -> bool:
    """Whether this is a pass that gradient checkpointing repeats inside the backward pass.

    The objective has its terms already then; remembering them would keep their graph alive.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def no_pass_error() -> UserError:
    """What to say when penalties are asked for that no training pass has left."""
    return UserError(
        "penalties must follow a forward pass in training mode, once; there was none since the "
        "last call. Call model.train() and the model before the loss."
    )


# Draws in force in this thread, by layer. A context variable and no attribute of the layer, so
# that threads can predict with one model at the same time.
_DRAWS: ContextVar[Mapping[nn.Module, Tensor] | None] = ContextVar("draws", default=None)


def draws_of(layer: nn.Module) -> Tensor | None:
    """The draws that `fixed_draws` holds for `layer`, or None."""
    draws = _DRAWS.get()
    return None if draws is None else draws.get(layer)


@contextmanager
def use_draws(draws: Mapping[nn.Module, Tensor]) -> Iterator[Mapping[nn.Module, Tensor]]:
    """Within the block, the named layers use these draws and make none of their own."""
    token = _DRAWS.set(draws)
    try:
        yield draws
    finally:
        _DRAWS.reset(token)


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
