"""Logits of a batch and, seen on the way to them, how foreign its examples are."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedLayer
from kepsvgp.attention.novelty import Novelty, Tokens, last_attention, looked_at, observing
from kepsvgp.inference.mode import is_bound


class Observed(NamedTuple):
    """What a model says to a batch."""

    logits: Float[Tensor, "sample example class"]
    parts: Float[Tensor, "example part"] | None = None
    """What `Novelty` sums up, where `fit_novelty` was called."""
    novelty: Novelty | None = None

    def scores(self) -> dict[str, Tensor]:
        """The fields of a `Prediction` that say how foreign the examples are."""
        if self.parts is None or self.novelty is None:
            return {}
        score = self.novelty.score(self.parts)
        p_value = self.novelty.p_value(score)
        return {"novelty": score} | ({} if p_value is None else {"novelty_p": p_value})


def observed(
    model: nn.Module, sample: Callable[[], Tensor], mean: Callable[[], Any] | None = None
) -> Observed:
    """The logits that `sample` gives, with the parts of the model's novelty if it has one.

    The layers are looked at once for all samples. Where draws come before one its input is
    random, and compiled code shows nothing: there they are looked at while `mean` runs, one more
    pass in which every draw is at its mean.
    """
    layers, last = looked_at(model).layers, last_attention(model)
    if last is None or last.novelty is None:
        return Observed(sample())
    novelty, seen = last.novelty, [[] for _ in layers]

    def see(place: int, tokens: Tokens) -> None:
        seen[place].append(novelty.parts(place, tokens))

    are_random = any(_draws_before(model, layer) for layer in layers)
    with observing([] if are_random else layers, see):
        logits = sample()
    if not all(seen) and mean is not None:
        seen = [[] for _ in layers]
        with observing(layers, see), uncompiled(model):
            mean()
    if not all(seen):
        return Observed(logits)
    parts = [_of_examples(each, logits) for each in seen]
    # of the mean over the draws: they may be others, or none, than those of the calibration
    energy = -logits.detach().float().mean(dim=0).logsumexp(dim=-1)
    return Observed(logits, torch.cat([*parts, energy.unsqueeze(-1)], dim=-1), novelty)


def _of_examples(
    seen: list[Float[Tensor, "sequence part"]], logits: Float[Tensor, "sample example class"]
) -> Float[Tensor, "example part"]:
    """One row for each example, the mean of all that was seen of it."""
    count = logits.shape[1]
    # a batch may come in pieces (a traced graph, whose sizes are open, is not asked whether it
    # does); otherwise the layer is used more than once
    in_pieces = type(count) is int and any(each.shape[0] % count for each in seen)
    calls = [torch.cat(seen)] if in_pieces else seen
    # an example may be several sequences, such as windows
    means = [each.reshape(count, -1, each.shape[-1]).mean(dim=1) for each in calls]
    return torch.stack(means).mean(dim=0)


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Runs what is compiled as it was written, which a graph that is being traced is anyway.

    That is said to all threads at once, so only where a compiled model has them wait.
    """
    if torch.compiler.is_compiling() or not is_bound(model):
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _draws_before(model: nn.Module, layer: nn.Module) -> bool:
    for module in model.modules():
        if module is layer:
            return False
        if isinstance(module, PenalisedLayer) and module.is_stochastic:
            return True
    return False
