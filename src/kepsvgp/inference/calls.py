"""A model that is called: with any kind of inputs, and once for each of several samples."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.base import fixed_draws, stochastic_layers, use_draws
from kepsvgp.attention.novelty import observing
from kepsvgp.errors import UserError
from kepsvgp.inference.trunk import with_remembered_trunk


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
        return logits_with_draws(model, inputs, draws)


def logits_with_draws(
    model: nn.Module, inputs: Any, draws: Mapping[nn.Module, Tensor]
) -> Float[Tensor, "sample example class"]:
    """Logits of every sample, from the draws of every stochastic layer.

    The layers before the first stochastic one run once: a model whose forward takes
    `num_samples` sees to that itself; any other is called once a sample, with those layers'
    output remembered.
    """
    num_samples = len(next(iter(draws.values())))
    if "num_samples" in inspect.signature(model.forward).parameters:
        with use_draws(draws):
            return call(model, inputs, num_samples=num_samples)
    sampled = model if num_samples == 1 else with_remembered_trunk(model)
    logits = []
    for sample in range(num_samples):
        own = {layer: u[sample : sample + 1] for layer, u in draws.items()}
        # what is observed is the same in every sample
        with use_draws(own), observing(None) if sample > 0 else nullcontext():
            logits.append(call(sampled, inputs))
    return torch.stack(logits)


def to_device(inputs: Any, device: torch.device | None) -> Any:
    """A tensor, or a mapping of tensors, on the device; unchanged without one."""
    if device is None:
        return inputs
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    return inputs.to(device, non_blocking=device.type == "cuda")
