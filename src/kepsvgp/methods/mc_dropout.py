"""Monte Carlo dropout: a trained network's own dropout, kept on, as draws from a posterior.

A sample is one set of dropout masks for the whole data set, as one draw of the network's
weights would be: the mask at a layer, position and channel follows from the seed alone, so a
prediction depends on neither the batch nor the padding. Everything else stays in evaluation
mode. In our own models layers before the first dropout run once.

References:
    Gal and Ghahramani, 2016, arXiv:1506.02142.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from kepsvgp.attention.base import (
    PenalisedAttention,
    fixed_draws,
    stochastic_layers,
    use_draws,
)
from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.conversion.selection import candidates
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import call, linear_in_draws
from kepsvgp.inference.mode import own_copy
from kepsvgp.inference.prediction import Prediction, seed_of, with_novelty
from kepsvgp.methods.post_hoc import PostHoc, Trained
from kepsvgp.models.blocks import Classifier
from kepsvgp.ops import noise


class Dropout(PostHoc):
    """Monte Carlo dropout of a trained network."""

    name, title = "mc_dropout", "MC dropout"

    def fit(self, trained: Trained) -> "MCDropout":
        """There is nothing to fit; a model without dropout is refused."""
        (direct,) = trained.direct
        return fit(direct.model, num_samples=direct.num_samples)


@dataclass(frozen=True, slots=True)
class MCDropout:
    """A trained model whose dropout is sampled `num_samples` times."""

    model: nn.Module
    num_samples: int = 10

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """Mean of the samples' probabilities, without gradients."""
        seed = seed_of(generator)
        seeds = noise.draw_seeds(self.num_samples, generator=generator)
        # a copy for this call alone: its hooks and modes are nobody else's
        own = replace(self, model=own_copy(self.model))
        with torch.no_grad():
            prediction = Prediction.from_logits(own._sampled_logits(inputs, seeds, generator))
        return with_novelty(replace(prediction, seed=seed), self.model, inputs)

    def _sampled_logits(
        self, inputs: Any, seeds: Int[Tensor, " sample"], generator: torch.Generator | None
    ) -> Float[Tensor, "sample batch class"]:
        # layers that draw, such as KEP's, draw as many samples
        with fixed_draws(self.model, len(seeds), generator=generator) as draws:
            logits = partial(self._with_draws, inputs, seeds)
            # masks of a sample are those of its mean too, and not those of its mirror image
            return linear_in_draws(self.model, draws, logits, mirrored=False, means=len(seeds))

    def _with_draws(
        self, inputs: Any, seeds: Int[Tensor, " sample"], draws: Mapping[nn.Module, Tensor]
    ) -> Float[Tensor, "draw batch class"]:
        """Logits of every draw, with the masks of the seeds in turn."""
        count = len(next(iter(draws.values()), seeds))
        seeds = seeds.repeat(count // len(seeds))
        # our own models broadcast over a sample axis; others are called once a sample
        if isinstance(self.model, Classifier):
            sampling = SharedDropout(seeds, folded=False)
            with _attention_dropout(self.model, sampling), sampling, use_draws(draws):
                return call(self.model, inputs, num_samples=count)
        return torch.stack([self._one(inputs, seeds[i : i + 1], draws, i) for i in range(count)])

    def _one(
        self, inputs: Any, seed: Int[Tensor, "1"], draws: Mapping[nn.Module, Tensor], sample: int
    ) -> Float[Tensor, "batch class"]:
        sampling = SharedDropout(seed, folded=True)
        own = {layer: u[sample : sample + 1] for layer, u in draws.items()}
        with _attention_dropout(self.model, sampling), sampling, use_draws(own):
            return call(self.model, inputs)


def fit(model: nn.Module, *, num_samples: int = 10) -> MCDropout:
    """There is nothing to fit; a model without dropout is refused."""
    if not _has_dropout(own_copy(model)):
        raise UserError(
            "mc_dropout must have a model with dropout to sample; this one has none. "
            "Train it with model.dropout greater than zero."
        )
    if any(isinstance(m, nn.MultiheadAttention) and m.dropout > 0 for m in model.modules()):
        raise UserError(
            "mc_dropout must reach every dropout; that inside torch.nn.MultiheadAttention is out "
            "of its reach. Set its dropout to 0, or use an attention built on "
            "scaled_dot_product_attention."
        )
    others = {
        type(module).__name__
        for module in model.modules()
        if isinstance(module, _DropoutNd) and not isinstance(module, nn.Dropout) and module.p > 0
    }
    if others:
        raise UserError(
            f"mc_dropout must reach every dropout; it does not reach {', '.join(sorted(others))}. "
            "Set its rate to 0, or use torch.nn.Dropout."
        )
    return MCDropout(model, num_samples)


class SharedDropout(TorchFunctionMode):
    """Within the block, dropout is sampled: masks by sample and place, shared by examples.

    It catches `dropout` and the dropout of `scaled_dot_product_attention`, whatever mode the
    modules are in; the n-th call with a positive rate is the n-th layer. The first gives its
    input a leading sample axis, unless samples are folded into the batch from the start.
    """

    def __init__(self, seeds: Int[Tensor, " sample"], *, folded: bool) -> None:
        super().__init__()
        self.seeds = seeds
        self.folded = folded
        self.has_samples = folded
        self._layer = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Answers calls of dropout and attention; passes on all others."""
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p", 0.0) > 0:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False):
        if p == 0:
            return x
        samples = self._unfold(x)
        keep = self._keep(p, *samples.shape[2:], like=x)
        return self._fold(samples * keep)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(Q Kᵀ · scale) with entries dropped, times V; sequences of all samples in one."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
        scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~causal, -math.inf)
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if is_bool else scores + attn_mask
        weights = scores.softmax(dim=-1).unflatten(0, (len(self.seeds), -1))
        keep = self._keep(dropout_p, *weights.shape[2:], like=weights)
        return (weights * keep).flatten(0, 1) @ value

    def _unfold(self, x: Tensor) -> Tensor:
        """Gives `x` the axes (sample, batch, …), or (1, batch, …) where nothing was sampled."""
        if not self.has_samples:
            self.has_samples = True
            return x.unsqueeze(0)
        return x.unflatten(0, (len(self.seeds), -1)) if self.folded else x

    def _fold(self, samples: Tensor) -> Tensor:
        return samples.flatten(0, 1) if self.folded else samples

    def _keep(self, p: float, *shape: int, like: Tensor) -> Float[Tensor, "sample 1 ..."]:
        """1 / (1 − p) where a place is kept, 0 where it is dropped."""
        seeds = noise.fold(self.seeds.to(like.device), self._layer)
        self._layer += 1
        kept = noise.uniform(seeds, *shape) >= p
        return kept.to(like.dtype).unsqueeze(1) / (1 - p)


@contextmanager
def _attention_dropout(model: nn.Module, sampling: SharedDropout) -> Iterator[None]:
    """Within the block, attention layers pass on their dropout rate, as they do in training.

    Only their own flags and those of dropout are set, not those of anything else in them, such
    as a batch norm.
    """

    def expand(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # the attention dropout of our layer cannot add an axis, so its input gets it
        if sampling.has_samples:
            return args
        sampling.has_samples = True
        return (args[0].expand(len(sampling.seeds), *args[0].shape), *args[1:])

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        # a layer that draws gives its output the sample axis itself
        sampling.has_samples = True

    attentions = _attention_modules(model)
    hooks = [m.register_forward_pre_hook(note) for m in stochastic_layers(model)]
    hooks += [
        module.register_forward_pre_hook(expand)
        for module in attentions
        if isinstance(module, SoftmaxAttention) and module.attention_dropout > 0
    ]
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in attentions + dropouts:
        module.training = True
    try:
        yield
    finally:
        for module in attentions + dropouts:
            module.training = False
        for hook in hooks:
            hook.remove()


def _attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that hand a dropout rate to attention in training: theirs, or that of a child.

    Attention is what conversion knows as such, and our own; of other models those modules that
    have a dropout layer.
    """
    known = {candidate.module for candidate in candidates(model, "zero")}
    return [
        module
        for module in model.modules()
        if not isinstance(module, nn.Dropout | PenalisedAttention)
        and (
            any(isinstance(child, nn.Dropout) and child.p > 0 for child in module.children())
            or (isinstance(module, SoftmaxAttention) and module.attention_dropout > 0)
            or module in known
        )
    ]


def _has_dropout(model: nn.Module) -> bool:
    return any(
        (isinstance(module, nn.Dropout) and module.p > 0)
        or (isinstance(module, SoftmaxAttention) and module.attention_dropout > 0)
        for module in model.modules()
    )
