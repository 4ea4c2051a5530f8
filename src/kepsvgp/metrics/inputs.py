"""What the metrics accept, checked once at their boundary.

A set of N examples with K classes is an array of probabilities, N × K with rows that sum
to one, and N integer labels. From them come the predicted label (the most probable class,
the first one among equals), its probability, called the confidence, and whether it is right.
"""

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from kepsvgp.errors import UserError

Array = Tensor | np.ndarray


class UndefinedMetricWarning(RuntimeWarning):
    """A metric has no value for these examples and is reported as NaN."""


class Outcome(NamedTuple):
    """Probabilities and labels with what follows from them for each example."""

    probs: Float[Tensor, "example class"]
    labels: Int[Tensor, " example"]
    predicted: Int[Tensor, " example"]
    confidence: Float[Tensor, " example"]
    correct: Bool[Tensor, " example"]


def check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuses a variant of a metric that there is not."""
    if value not in known:
        choices = " or ".join(f'"{choice}"' for choice in known)
        raise UserError(f"{name} must be {choices}; got {value!r}.")


def outcome(probs: Float[Array, "example class"], labels: Integer[Array, " example"]) -> Outcome:
    """The predicted label, its probability and its correctness for each example."""
    checked = check_probs(as_tensor(probs))
    given = as_tensor(labels)
    targets = given.long()
    num_examples, num_classes = checked.shape
    if targets.shape != (num_examples,) or not torch.equal(targets.to(given.dtype), given):
        raise UserError(
            f"labels must be one integer for each of the {num_examples} rows of probs; got "
            f"shape {tuple(given.shape)} and {given.dtype}."
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        raise UserError(
            f"labels must lie in 0 … {num_classes - 1} for {num_classes} columns of "
            f"probabilities; got values from {low} to {high}."
        )
    confidence, predicted = checked.max(dim=1)
    return Outcome(checked, targets, predicted, confidence, predicted == targets)


def check_probs(probs: Tensor) -> Tensor:
    """The probabilities, refused if they cannot be any."""
    if probs.ndim != 2 or probs.numel() == 0 or not probs.is_floating_point():
        raise UserError(
            "probs must be examples × classes of floating-point numbers with at least one of "
            f"each; got shape {tuple(probs.shape)} and {probs.dtype}."
        )
    # the comparisons are false for NaN
    lowest = float(probs.min())
    furthest = float((probs.sum(dim=1) - 1).abs().max())
    # a loose bound, for half precision: it tells probabilities from logits and from percentages
    if not (lowest >= 0 and furthest <= 1e-2):
        raise UserError(
            "probs must be finite and non-negative with rows that sum to 1; the smallest value "
            f"is {lowest:.6g} and a row's sum is off by {furthest:.6g}. "
            "Apply softmax to logits first."
        )
    return probs


def as_tensor(values: Array) -> Tensor:
    """The values as a CPU tensor; half precisions become float32, which holds them exactly."""
    if isinstance(values, np.ndarray):
        # what torch cannot share: memory that it must not write to, runs backwards, or has the
        # bytes of another machine
        is_forward = all(stride >= 0 for stride in values.strides)
        if not (values.flags.writeable and is_forward and values.dtype.isnative):
            values = values.astype(values.dtype.newbyteorder("="), order="C")
    tensor = torch.as_tensor(values).detach().cpu()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def as_scores(values: Array, name: str) -> Tensor:
    """One number for each example as a tensor, refused if one of them is NaN."""
    scores = as_tensor(values)
    if scores.ndim != 1 or not scores.is_floating_point():
        raise UserError(
            f"{name} must be a vector of floating-point numbers, one for each example; got "
            f"shape {tuple(scores.shape)} and {scores.dtype}."
        )
    if bool(scores.isnan().any()):
        raise UserError(
            f"{name} must not hold NaN; {int(scores.isnan().sum())} of {scores.numel()} values "
            "are NaN. Look for a training run that diverged."
        )
    return scores


def defined(name: str, value: Tensor, why_not: str) -> float:
    """The value as a number, with a warning that says why if it is NaN."""
    number = float(value)
    if math.isnan(number):
        warn_undefined([name], why_not, stacklevel=4)
    return number


def warn_undefined(names: Iterable[str], why_not: str, *, stacklevel: int = 3) -> None:
    """One warning for all the metrics that have no value, pointing at who asked for them."""
    warnings.warn(
        f"{', '.join(names)} undefined: {why_not}.", UndefinedMetricWarning, stacklevel=stacklevel
    )
