"""What an attention layer keeps of the inputs of its training, to tell how foreign others are."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.base import repeat_mask, used_modules
from kepsvgp.maths.novelty import Moments, leverage, mean_leverage, moments, precision
from kepsvgp.ops import dispatch
from kepsvgp.ops.pooling import mean_pool


class Tokens(NamedTuple):
    """What enters an attention layer."""

    x: Float[Tensor, "sequence token dim"]
    make_qk: Callable[[], Float[Tensor, "sequence pair token feature"]]
    """Queries of all heads, then keys of all heads."""
    mask: Bool[Tensor, "sequence token"] | None

    @property
    def mean(self) -> Float[Tensor, "sequence dim"]:
        """The mean over the real tokens."""
        return mean_pool(self.x.float(), self.mask)

    def feature_moments(self) -> Moments:
        """Of the features, for each head and branch."""
        is_real = None if self.mask is None else self.mask.flatten()
        features = _features(self.make_qk())
        return moments(features.transpose(0, 1).flatten(1, 2), is_real)

    def mean_leverage(
        self, precision: Float[Tensor, "pair feature feature"]
    ) -> Float[Tensor, "sequence pair"]:
        """Of the features, over the real tokens; see `kepsvgp.maths.novelty`."""
        qk, mask = self.make_qk(), self.mask
        given = (qk,)
        if mask is not None:
            # with the axes by which sequences are cut
            given += (mask[:, None, :, None].to(qk.dtype).expand(-1, qk.shape[1], -1, 1),)

        def of_some(qk: Tensor, *real: Tensor) -> tuple[Tensor]:
            of_each = real[0][:, 0, :, 0].bool() if real else None
            return (mean_leverage(_features(qk), precision, of_each),)

        (found,) = dispatch.by_sequence(of_some, given, width=qk.shape[-1])
        return found


def _features(
    qk: Float[Tensor, "sequence pair token feature"],
) -> Float[Tensor, "sequence pair token feature"]:
    """φ(t) = t / ‖t‖."""
    # in order, as the products that follow want them
    return nn.functional.normalize(qk.float().contiguous(), dim=-1)


_QK = "qk_precision_"


class Novelty(nn.Module):
    """How foreign an input is to a model, seen at its first, middle and last attention layer.

    The parts of the score: how far the mean token that enters each of these layers is from where
    those of familiar inputs are; the leverage of queries and keys in the middle one; the energy
    of the logits. Saved with the last layer as buffers, which stay in float32 whatever becomes of
    the model.
    """

    center: Float[Tensor, " part"]
    scale: Float[Tensor, " part"]
    calibration: Float[Tensor, " example"]
    """Scores of held-out inputs, sorted; none where no p-value can be given."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @classmethod
    def from_moments(cls, middle: int, features: Moments, means: Sequence[Moments]) -> "Novelty":
        """Parts that are neither standardised nor calibrated yet."""
        none = features.total.new_zeros(len(means) + 2)
        buffers = {
            f"{_QK}{middle}": precision(features.second_moment),
            "center": none,
            "scale": none + 1,
            "calibration": none[:0],
        }
        for place, each in enumerate(means):
            buffers[f"input_mean_{place}"] = each.mean
            buffers[f"input_precision_{place}"] = precision(each.covariance)
        return cls(**{name: value.float() for name, value in buffers.items()})

    @property
    def middle(self) -> int:
        """The place of the middle layer among those that are looked at, which names its buffer."""
        return next(int(name[len(_QK) :]) for name in self._buffers if name.startswith(_QK))

    def parts(self, place: int, tokens: Tokens) -> Float[Tensor, "sequence part"]:
        """What is seen at one layer: the distance of the mean token, after any leverage.

        The leverage is the mean over real tokens, heads and both branches.
        """
        mean, precision = (getattr(self, f"input_{each}_{place}") for each in ("mean", "precision"))
        found = [leverage(tokens.mean - mean, precision)]
        if place == self.middle:
            by_pair = tokens.mean_leverage(getattr(self, f"{_QK}{place}"))
            found = [by_pair.mean(dim=1), *found]
        return torch.stack(found, dim=-1)

    def score(self, parts: Float[Tensor, "example part"]) -> Float[Tensor, " example"]:
        """The sum of leverage, mean distance and energy, in units of how familiar inputs vary.

        Leverage and distances that are far too small are foreign as well: z becomes z + z² / 2.
        """
        z = (parts - self.center) / self.scale
        seen, energy = z[:, :-1] + z[:, :-1].square() / 2, z[:, -1]
        of_kernel = seen[:, self.middle]
        of_inputs = (seen.sum(dim=-1) - of_kernel) / (seen.shape[-1] - 1)
        return of_kernel + of_inputs + energy

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
    is_middle: bool = False
    """Whether it is the middle one of a model that does not list all of its layers."""
    is_shown: bool = True
    """Whether it has anything to show: one that is never called has not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_module("novelty", None)

    @property
    def is_observed(self) -> bool:
        """Whether somebody looks; compiled code, which cannot tell, shows nothing."""
        if torch.compiler.is_dynamo_compiling():
            return False
        observer = _OBSERVER.get()
        return observer is not None and self in observer.layers

    def observe(self, x: Tensor, qk: Callable[[], Tensor], mask: Tensor | None) -> None:
        """Shows the tokens to whom `observing` lets see them."""
        if self.is_observed:
            observer = _OBSERVER.get()
            assert observer is not None
            x = x.flatten(0, -3)
            observer.see(observer.layers.index(self), Tokens(x, qk, repeat_mask(mask, x)))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        start = f"{prefix}novelty."
        stored = {k.removeprefix(start): v for k, v in state_dict.items() if k.startswith(start)}
        if stored and "input_mean_0" not in stored:
            warnings.warn("novelty of an earlier version is left out: fit it again.", stacklevel=2)
            for name in stored:
                del state_dict[start + name]
            stored = {}
        if any(name.startswith(prefix) for name in state_dict):
            # it is of certain weights: others bring their own, or none
            device = next(self.parameters()).device
            made = {name: torch.empty_like(value, device=device) for name, value in stored.items()}
            self.novelty = Novelty(**made) if stored else None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _Observer(NamedTuple):
    layers: Sequence[nn.Module]
    see: Callable[[int, Tokens], Any]


# in this thread alone, as the draws are
_OBSERVER: ContextVar[_Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(
    layers: Sequence[nn.Module], see: Callable[[int, Tokens], Any] = lambda *_: None
) -> Iterator[None]:
    """Within the block, `see` is called with the place of every layer called, and its tokens."""
    token = _OBSERVER.set(_Observer(layers, see))
    try:
        yield
    finally:
        _OBSERVER.reset(token)


class Looked(NamedTuple):
    """The first, the middle and the last layer of those that can be observed, each once."""

    layers: list[ObservedAttention]
    middle: int
    """The place of the middle one."""


def looked_at(model: nn.Module) -> Looked:
    """The layers of a model at which novelty looks; none where there is no attention of ours."""
    layers, last = _all_layers(model), last_attention(model)
    if last is None:
        return Looked([], 0)
    # the lower one of two
    middle = next((each for each in layers if each.is_middle), layers[(len(layers) - 1) // 2])
    chosen = list(dict.fromkeys([layers[0], middle, last]))
    return Looked(chosen, chosen.index(middle))


def last_attention(model: nn.Module) -> ObservedAttention | None:
    """The last layer that can be observed and has weights, with which novelty is kept."""
    own = [layer for layer in _all_layers(model) if any(True for _ in layer.parameters())]
    return own[-1] if own else None


def _all_layers(model: nn.Module) -> list[ObservedAttention]:
    layers = [module for module in used_modules(model) if isinstance(module, ObservedAttention)]
    return [layer for layer in layers if layer.is_shown]
