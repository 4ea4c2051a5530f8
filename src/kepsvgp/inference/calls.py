"""A model that is called: with any kind of inputs, and once for each of several samples."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.base import fixed_draws, stochastic_layers, use_draws
from kepsvgp.attention.novelty import observing
from kepsvgp.errors import UserError
from kepsvgp.inference.trunk import Sampled, with_remembered_trunk
from kepsvgp.ops import dispatch
from kepsvgp.ops.few_bits import has_few_bits

# steps that change little, and by more than logits of this type are rounded
STEPS = {torch.float64: 1e-4, torch.float32: 5e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
FEW_BITS = 0.1


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: the tensor itself, or its field `logits`."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None:
        raise UserError(
            "model must return logits, or an object that has them as `logits`; got a "
            f"{type(output).__name__}. A Hugging Face model must be one for classification, with "
            "return_dict on."
        )
    return logits


def call(model: Callable[..., Any], inputs: Any, **kwargs: Any) -> Tensor:
    """The logits of a batch."""
    return logits_of(pass_through(model, inputs, **kwargs))


def pass_through(model: Callable[..., Any], inputs: Any, **kwargs: Any) -> Any:
    """What a model returns: a mapping is passed by keyword, anything else as it is."""
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs, **kwargs)
        return model(inputs, **kwargs)
    except UserError:
        raise
    except Exception as error:
        check_tensors(inputs, error)
        raise


def check_tensors(inputs: Any, error: Exception | None = None) -> None:
    """Tells who gave something else to a model of tensors, which some models do take."""
    parts = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    for name, value in parts.items():
        is_left_out = value is None and value is not inputs
        if not is_left_out and (not isinstance(value, Tensor) or value.ndim == 0):
            why = "" if error is None else f", which the model does not take ({error})"
            raise UserError(
                "inputs must be a tensor or a mapping of tensors that is passed by keyword; got "
                f"a {type(value).__name__} as {name}{why}. "
                "Texts go through its tokenizer first, with return_tensors='pt'; of a batch with "
                "labels, give the inputs alone."
            ) from error


def sampled_logits(
    model: nn.Module, inputs: Any, num_samples: int, generator: torch.Generator | None = None
) -> Float[Tensor, "sample example class"]:
    """Logits of every sample; one sample for a model without stochastic layers."""
    if not stochastic_layers(model):
        return call(model, inputs).unsqueeze(0)
    with fixed_draws(model, num_samples, generator=generator) as draws:
        return logits_with_draws(model, inputs, draws, mirrored=True)


def logits_with_draws(
    model: nn.Module, inputs: Any, draws: Mapping[nn.Module, Tensor], *, mirrored: bool
) -> Float[Tensor, "sample example class"]:
    """Logits of every sample, from the draws of every stochastic layer."""
    return linear_in_draws(model, draws, partial(_with_draws, model, inputs), mirrored=mirrored)


def linear_in_draws(
    model: nn.Module,
    draws: Mapping[nn.Module, Tensor],
    logits: Callable[[Mapping[nn.Module, Tensor]], Float[Tensor, "sample example class"]],
    *,
    mirrored: bool,
    means: int = 1,
) -> Float[Tensor, "sample example class"]:
    """What `logits` makes of draws, linear in those of layers that are.

    They stand for f(m) + J (v − m), the model for which their posterior was fitted: J (v − m) is
    the central difference of steps from the mean m towards v and away from it. After these steps
    `logits` is given m itself, once or, where f differs from sample to sample, as often as there
    are. Where the second half of the draws mirrors the first, its differences are those of the
    first: the passes are as many as the draws.
    """
    are_linear = draws and all(getattr(layer, "is_linear", False) for layer in draws)
    if not are_linear:
        return logits(draws)
    num_samples = len(next(iter(draws.values())))
    count = (num_samples + 1) // 2 if mirrored else num_samples
    step, found = 0.0, torch.empty(0)
    # a model may cast its numbers on the way, of which only a pass tells
    while step != (wanted := _step(model, draws)):
        near = {layer: _near_mean(layer, v[:count], wanted, means) for layer, v in draws.items()}
        with nullcontext() if step == 0 else observing([]):
            found = logits(near)
        step = wanted
    towards, away, at_mean = found.split([count, count, means])
    moved = (towards - away) / (2 * step)
    moved = torch.cat([moved, -moved])[:num_samples] if mirrored else moved
    return at_mean + moved


def _step(model: nn.Module, layers: Iterable[nn.Module]) -> float:
    """How far from the mean differences are taken, by the coarsest numbers that a model counts in.

    Logits change by more than they are rounded, and by little otherwise.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    types.update(*(getattr(layer, "counted_in", ()) for layer in layers))
    device = next(model.parameters()).device.type
    if dispatch.is_autocast(device):
        types.add(torch.get_autocast_dtype(device))
    few_bits = [FEW_BITS] if has_few_bits(model) else []
    return max([STEPS.get(each, FEW_BITS) for each in types] + few_bits)


def _near_mean(layer: Any, v: Tensor, step: float, means: int) -> Tensor:
    """A step from the mean towards every draw, one away from it, and the mean.

    It comes last: a mean of zero draws nothing, and the first sample is what shortcuts are
    tried on.
    """
    mean = layer.v_mean.detach().to(v)
    moved = step * (v - mean)
    return torch.cat([mean + moved, mean - moved, mean.expand(means, *mean.shape)])


def _with_draws(
    model: nn.Module, inputs: Any, draws: Mapping[nn.Module, Tensor]
) -> Float[Tensor, "sample example class"]:
    """Logits of every sample.

    The layers before the first stochastic one run once: a model whose forward takes
    `num_samples` sees to that itself; any other is called once a sample, with those layers'
    output remembered.
    """
    num_samples = len(next(iter(draws.values())))
    if "num_samples" in inspect.signature(model.forward).parameters:
        with use_draws(draws):
            return call(model, inputs, num_samples=num_samples)
    sampled = model if num_samples == 1 else with_remembered_trunk(model)
    logits: list[Tensor] = []
    for sample in range(num_samples):
        own = {layer: u[sample : sample + 1] for layer, u in draws.items()}
        # what is observed is the same in every sample
        with use_draws(own), observing([]) if sample > 0 else nullcontext():
            logits.append(call(sampled, inputs))
        if sample == 0 and isinstance(sampled, Sampled) and len(draws) == 1:
            with use_draws(draws), observing([]):
                found = sampled.first_tokens(partial(call, inputs=inputs), num_samples, logits[0])
            if found is not None:
                return found
    return torch.stack(logits)


def to_device(inputs: Any, device: torch.device | None) -> Any:
    """A tensor, or a mapping of tensors, on the device; unchanged without one."""
    if device is None:
        return inputs
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    return inputs.to(device, non_blocking=device.type == "cuda")
