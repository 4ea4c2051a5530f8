"""Brings a converted layer close to the one it replaces, before any label is seen.

The layer is fitted to reproduce, at its posterior mean, what the original module put out for
the same inputs on a few calibration batches: one layer, no other part of the model, some
hundred steps of Adam. The squared error is over real tokens and relative to the variance of the
targets, so that 1 is no better than a constant.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from kepsvgp.attention import KEPAttention
from kepsvgp.attention.base import use_draws
from kepsvgp.conversion.base import ConvertedAttention
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import pass_through
from kepsvgp.inference.mode import evaluating

LEARNING_RATE = 1e-2


class Call(NamedTuple):
    """One recorded call of an attention module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class Pair(NamedTuple):
    """What the KEP layer is given, and what should come out behind the output map."""

    x: Float[Tensor, "batch token dim"]
    mask: Bool[Tensor, "batch token"] | None
    target: Float[Tensor, "batch token dim"]


@torch.no_grad()
def record(
    model: nn.Module, modules: Iterable[nn.Module], batches: Iterable[Any]
) -> dict[nn.Module, list[Call]]:
    """What the modules are given and return when the model sees the batches."""
    calls: dict[nn.Module, list[Call]] = {module: [] for module in modules}

    def remember(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        # copies: the model may go on in place
        calls[module].append(Call(*_copied((args, kwargs, output))))

    handles = [module.register_forward_hook(remember, with_kwargs=True) for module in calls]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for inputs in batches:
            pass_through(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module in training:
            module.training = True
    if not all(calls.values()):
        raise UserError(
            "calibration must hold at least one batch that reaches the converted layers; got none."
        )
    return calls


def _copied(values: Any) -> Any:
    """The same with copies of its tensors; one tensor given twice stays one."""
    done: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return done[id(leaf)] if id(leaf) in done else done.setdefault(id(leaf), leaf.clone())

    return tree_map(copy, values)


def warm_start(converted: ConvertedAttention, calls: list[Call], *, steps: int) -> float:
    """Fits the layer to the calls of the module it replaces; returns the error that is left."""
    dtype = next(converted.kep.parameters()).dtype
    # at float32, whatever the model has: half precision has no room for small steps
    converted.float()
    try:
        with evaluating(converted) as evaluated:
            assert isinstance(evaluated, ConvertedAttention)
            error = _fit(evaluated, calls, steps)
    finally:
        converted.to(dtype)
    if not math.isfinite(error):
        raise UserError(
            f"calibration must let the layer be fitted; its error became {error}. Look for NaN or "
            "extreme numbers in the batches, and for batches whose tokens are all alike."
        )
    return error


def _fit(converted: ConvertedAttention, calls: list[Call], steps: int) -> float:
    pairs = [_pair(converted, call) for call in calls]
    variance = torch.cat([_real(target, mask) for _, mask, target in pairs]).var(dim=0).mean()
    trained = {n: p for n, p in converted.kep.named_parameters() if n != "v_tril_raw"}
    parameters = list(trained.values())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    order = torch.randint(len(pairs), (steps,), generator=torch.Generator().manual_seed(0))
    with torch.enable_grad():
        for choice in order.tolist():
            loss = _error(converted, pairs[choice]) / variance
            # gradients of the layer alone: the rest of the model must not collect any
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            schedule.step()
    optimizer.zero_grad()
    with torch.no_grad():
        balance(converted.kep)
        errors = [_error(converted, pair) / variance for pair in pairs]
    return torch.stack(errors).mean().item()


@torch.no_grad()
def balance(kep: KEPAttention) -> None:
    """Moves scale from the scores to q(v) until its mean is of size 1, as the prior expects.

    The output at the posterior mean stays what it is.
    """
    scale = kep.v_mean.square().mean().sqrt()
    kep.v_mean.div_(scale)
    for weight in (kep.to_dual.weight,) if kep.projection == "dual" else (kep.w_e, kep.w_r):
        weight.mul_(scale)


@torch.no_grad()
def _pair(converted: ConvertedAttention, call: Call) -> Pair:
    """Lets the converted module read its arguments, and sees what reaches the KEP layer."""
    seen: list[Any] = []
    handle = converted.kep.register_forward_pre_hook(lambda _, args: seen.append(args))
    try:
        converted(*_to_float(call.args), **_to_float(call.kwargs))
    finally:
        handle.remove()
    x, mask = seen[0]
    target = converted.tokens_of(call.output).float()
    if mask is None:
        return Pair(x, mask, target)
    # attention over padding alone is not a number
    has_tokens = mask.any(dim=1)
    return Pair(x[has_tokens], mask[has_tokens], target[has_tokens])


def _to_float(arguments: Any) -> Any:
    """The same arguments with float32 tensors; one tensor given twice stays one."""
    done: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return done.setdefault(id(value), value.float() if is_float else value)

    if isinstance(arguments, Mapping):
        return {name: convert(value) for name, value in arguments.items()}
    return tuple(convert(value) for value in arguments)


def _error(converted: ConvertedAttention, pair: Pair) -> Float[Tensor, ""]:
    """Mean squared error at the posterior mean, over real tokens."""
    kep = converted.kep
    with use_draws({kep: kep.v_mean.unsqueeze(0)}):
        out = converted.attend(pair.x, pair.mask)
    return (_real(out, pair.mask) - _real(pair.target, pair.mask)).square().mean()


def _real(tokens: Tensor, mask: Tensor | None) -> Float[Tensor, "token dim"]:
    return tokens.flatten(0, 1) if mask is None else tokens[mask]
