"""Pooled features of our classifiers, what methods that act on the last layer start from."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kepsvgp.attention.base import fixed_draws, stochastic_layers
from kepsvgp.inference.calls import call, to_device
from kepsvgp.inference.mode import evaluating
from kepsvgp.models.blocks import Classifier


class Pooled(NamedTuple):
    """Features of a whole split and the labels of its examples."""

    features: Float[Tensor, "sample example dim"]
    labels: Int[Tensor, " example"]


@torch.no_grad()
def pooled(
    model: Classifier,
    inputs: Any,
    *,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "sample batch dim"]:
    """Features of a batch in evaluation mode, one set for each sample of a stochastic model.

    Without `num_samples` a stochastic model has a draw of its own for every example, and without
    a generator either its draws are at their mean.
    """
    with evaluating(model) as evaluated:
        assert isinstance(evaluated, Classifier)
        if num_samples is None or not stochastic_layers(evaluated):
            features = call(evaluated.features, inputs, generator=generator)
        else:
            with fixed_draws(evaluated, num_samples, generator=generator):
                features = call(evaluated.features, inputs, num_samples=num_samples)
    # no sample axis where nothing before the head draws
    return features if features.ndim == 3 else features.unsqueeze(0)


def gather_pooled(
    model: Classifier,
    batches: Iterable[Any],
    num_samples: int | None,
    *,
    seed: int | None = 0,
    device: torch.device | None = None,
) -> Pooled:
    """Features of all batches `(inputs, labels, index)`, in the order of the examples.

    With `num_samples` every batch has the same draws, as in prediction; without, every example
    has its own; with neither them nor a seed, draws are at their mean.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    parts, labels, positions = [], [], []
    for inputs, batch_labels, index in batches:
        if num_samples is not None and generator is not None:
            generator.manual_seed(generator.initial_seed())
        inputs = to_device(inputs, device)
        parts.append(pooled(model, inputs, num_samples=num_samples, generator=generator))
        labels.append(batch_labels.to(parts[-1].device))
        positions.append(index)
    order = torch.cat(positions).argsort().to(parts[0].device)
    return Pooled(torch.cat(parts, dim=1)[:, order], torch.cat(labels)[order])
