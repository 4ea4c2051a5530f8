"""What an attention layer keeps of the inputs of its training, to tell how foreign others are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.base import repeat_mask, used_modules
from kepsvgp.maths.novelty import Moments, leverage, mean_leverage, moments, precision
from kepsvgp.ops.pooling import mean_pool


class Tokens(NamedTuple):
    """What enters an attention layer."""

    x: Float[Tensor, "sequence token dim"]
    qk: Float[Tensor, "sequence pair token feature"]
    """Queries of all heads, then keys of all heads."""
    mask: Bool[Tensor, "sequence token"] | None

    @property
    def features(self) -> Float[Tensor, "sequence pair token feature"]:
        """φ(t) = t / ‖t‖ of queries and keys."""
        # in order, as the products that follow want them
        return nn.functional.normalize(self.qk.float().contiguous(), dim=-1)

    @property
    def mean(self) -> Float[Tensor, "sequence dim"]:
        """The mean over the real tokens."""
        return mean_pool(self.x.float(), self.mask)

    def moments(self) -> tuple[Moments, Moments]:
        """Of the features, for each head and branch, and of the mean tokens."""
        is_real = None if self.mask is None else self.mask.flatten()
        return moments(self.features.transpose(0, 1).flatten(1, 2), is_real), moments(self.mean)


class Novelty(nn.Module):
    """How foreign the input of a layer is: leverage of queries and keys, and its own distance.

    Saved with the layer as buffers, which stay in float32 whatever becomes of the model. The
    third part, which is read off the logits, is standardised here with the others.
    """

    qk_precision: Float[Tensor, "pair feature feature"]
    input_mean: Float[Tensor, " dim"]
    input_precision: Float[Tensor, "dim dim"]
    center: Float[Tensor, " part"]
    scale: Float[Tensor, " part"]
    calibration: Float[Tensor, " example"]
    """Scores of held-out inputs, sorted; none where no p-value can be given."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @classmethod
    def from_moments(cls, features: Moments, means: Moments) -> "Novelty":
        """Parts that are neither standardised nor calibrated yet."""
        none = features.total.new_zeros(3)
        buffers = {
            "qk_precision": precision(features.second_moment),
            "input_mean": means.mean,
            "input_precision": precision(means.covariance),
            "center": none,
            "scale": none + 1,
            "calibration": none[:0],
        }
        return cls(**{name: value.float() for name, value in buffers.items()})

    def parts(self, tokens: Tokens) -> Float[Tensor, "sequence part"]:
        """Leverage, mean over real tokens, heads and both branches; distance of the mean token."""
        of_kernel = mean_leverage(tokens.features, self.qk_precision, tokens.mask).mean(dim=1)
        of_input = leverage(tokens.mean - self.input_mean, self.input_precision)
        return torch.stack([of_kernel, of_input], dim=-1)

    def score(self, parts: Float[Tensor, "example part"]) -> Float[Tensor, " example"]:
        """The sum of the parts, each in units of how it varies over familiar inputs."""
        return ((parts - self.center) / self.scale).sum(dim=-1)

    def p_value(self, score: Float[Tensor, " example"]) -> Float[Tensor, " example"] | None:
        """(1 + #{calibration ≥ score}) / (n + 1): at most α with probability α at most."""
        size = self.calibration.shape[0]
        if size == 0:
            return None
        below = (self.calibration < score.unsqueeze(-1)).sum(dim=-1)
        return (1 + size - below) / (size + 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Novelty":
        # devices are followed, and other precisions are not
        for name, value in self._buffers.items():
            assert value is not None
            self._buffers[name] = value.to(fn(value).device)
        return self


class ObservedAttention(nn.Module):
    """Attention whose inputs can be observed, and compared with those of its training."""

    novelty: Novelty | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("novelty", None)

    def observe(self, x: Tensor, qk: Callable[[], Tensor], mask: Tensor | None) -> None:
        """Shows the tokens to whom `observing` lets see them."""
        # compiled code cannot read context variables
        if torch.compiler.is_dynamo_compiling():
            return
        observer = _OBSERVER.get()
        if observer is not None and observer.layer is self:
            x = x.flatten(0, -3)
            observer.see(Tokens(x, qk(), repeat_mask(mask, x)))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        start = f"{prefix}novelty."
        stored = {k.removeprefix(start): v for k, v in state_dict.items() if k.startswith(start)}
        if any(name.startswith(prefix) for name in state_dict):
            # it is of certain weights: others bring their own, or none
            device = next(self.parameters()).device
            made = {name: torch.empty_like(value, device=device) for name, value in stored.items()}
            self.novelty = Novelty(**made) if stored else None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _Observer(NamedTuple):
    layer: nn.Module
    see: Callable[[Tokens], Any]


# in this thread alone, as the draws are
_OBSERVER: ContextVar[_Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(layer: nn.Module | None, see: Callable[[Tokens], Any] = lambda _: None) -> Iterator:
    """Within the block, `see` is called with the tokens of every call of `layer`; None for none."""
    token = _OBSERVER.set(None if layer is None else _Observer(layer, see))
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def last_attention(model: nn.Module) -> ObservedAttention | None:
    """The last layer that a model lists of those that can be observed."""
    layers = [module for module in used_modules(model) if isinstance(module, ObservedAttention)]
    return layers[-1] if layers else None
