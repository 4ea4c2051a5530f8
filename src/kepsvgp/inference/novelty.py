"""Shows a trained model what is familiar, so that it can tell what is not.

One pass over unlabelled training inputs gives the moments of what enters three attention layers;
see `kepsvgp.maths.novelty` for the formulas and docs/method.md for the score.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.novelty import (
    Novelty,
    Tokens,
    last_attention,
    looked_at,
    observing,
)
from kepsvgp.errors import UserError, told
from kepsvgp.inference.mode import evaluating
from kepsvgp.inference.observed import uncompiled
from kepsvgp.inference.prediction import answer, call, to_device
from kepsvgp.maths.novelty import Moments, moments

# fewer say nothing about the tail
FEWEST = 20
# of training batches that are kept for the scale of the parts, where nothing else is given
KEPT = 16


@told
def fit_novelty(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    calibration: Iterable[Any] | None = None,
    num_samples: int = 10,
    seed: int = 0,
    device: torch.device | None = None,
) -> None:
    """Fits what `Prediction.novelty` is measured against; it is kept with the model's weights.

    One pass over the inputs that the model was trained on, without labels and without gradients.
    Fit again after further training.

    Args:
        model: A classifier with attention of ours, such as a converted one; changed in place.
        batches: Inputs, `(inputs, labels, …)`, or mappings, of which `labels` are left out.
        calibration: Batches of familiar inputs that were not trained on, for the p-values of
            `Prediction.novelty_p`. A quarter of them give the scale of the score's parts.
        num_samples: How the calibration inputs are predicted: p-values are exact for as many
            samples,
        seed: drawn with this seed; other draws move them a little.
        device: Where the batches go.

    Examples:
        >>> fit_novelty(convert(model), [inputs[:20]], calibration=[inputs[20:]])
        >>> predict(model, inputs).novelty_p.shape
        torch.Size([40])
    """
    layer = last_attention(model)
    if layer is None:
        raise UserError("model must have attention of ours; got none. Call convert first.")
    before = layer.novelty
    kept: list[Any] = []
    stride = 1
    try:
        sums: list[Moments] = []
        for number, inputs in enumerate(_inputs(batches, device)):
            new = _moments(model, inputs, may_leave_out=not sums)
            sums = [*map(add, sums, new)] if sums else new
            if number % stride == 0:
                kept.append(inputs)
            if len(kept) > KEPT:
                kept, stride = kept[::2], 2 * stride
        if not sums:
            raise UserError("batches must hold at least one example; got none.")
        layer.novelty = Novelty.from_moments(looked_at(model).middle, sums[0], sums[1:]).to(
            next(layer.parameters()).device
        )
        held_out = kept if calibration is None else _inputs(calibration, device)
        parts = torch.cat([_parts(model, inputs, num_samples, seed) for inputs in held_out])
        layer.novelty = _standardised(layer.novelty, parts, calibrate=calibration is not None)
    except BaseException:
        layer.novelty = before
        raise


def gives_scale(count: int) -> Bool[Tensor, " example"]:
    """Which of the calibration inputs give the scale of the score's parts.

    To the score they are not as new ones: what is promised about it is promised on the others.
    """
    return torch.arange(count) % 4 == 0


def _inputs(batches: Iterable[Any], device: torch.device | None) -> Iterator[Any]:
    for batch in batches:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if isinstance(inputs, Mapping):
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        yield to_device(inputs, device)


@torch.no_grad()
def _moments(model: nn.Module, inputs: Any, *, may_leave_out: bool) -> list[Moments]:
    """Of the features at the middle layer, and of the mean tokens at each."""
    with evaluating(model) as evaluated:
        layers, middle = looked_at(evaluated)
        features: list[Moments] = []
        means: list[list[Moments]] = [[] for _ in layers]

        def see(place: int, tokens: Tokens) -> None:
            means[place].append(moments(tokens.mean))
            if place == middle:
                features.append(tokens.feature_moments())

        with observing(layers, see), uncompiled(evaluated):
            call(evaluated, inputs)
    silent = [layer for layer, seen in zip(looked_at(model).layers, means, strict=True) if not seen]
    if silent:
        if not may_leave_out or last_attention(model) in silent:
            raise UserError(
                "every batch must go through the converted layers; one did not. Give inputs of "
                "one kind, or convert a layer that all go through."
            )
        for layer in silent:
            layer.is_shown = False
        return _moments(model, inputs, may_leave_out=True)
    return [reduce(add, each) for each in (features, *means)]


def _parts(
    model: nn.Module, inputs: Any, num_samples: int, seed: int
) -> Float[Tensor, "example part"]:
    generator = torch.Generator().manual_seed(seed)
    parts = answer(model, inputs, num_samples, generator).parts
    assert parts is not None
    return parts


def _standardised(
    novelty: Novelty, parts: Float[Tensor, "example part"], *, calibrate: bool
) -> Novelty:
    """With scales and, from other examples than those, the scores that p-values are taken from."""
    if calibrate and len(parts) < FEWEST:
        raise UserError(
            f"calibration must hold at least {FEWEST} examples; got {len(parts)}. Give more, or "
            "leave it out and do without p-values."
        )
    # by number: an accelerator would have to be waited for, to count what a mask chooses
    gives = gives_scale(len(parts))
    chosen, others = (each.nonzero()[:, 0].to(parts.device) for each in (gives, ~gives))
    reference = parts[chosen] if calibrate else parts
    # a part that never varies tells nothing
    scale = reference.std(dim=0, correction=0)
    buffers = dict(novelty.named_buffers()) | {
        "center": reference.mean(dim=0),
        "scale": torch.where(scale > 0, scale, torch.inf),
    }
    made = Novelty(**buffers)
    if calibrate:
        made.calibration = made.score(parts[others]).sort().values
    return made
