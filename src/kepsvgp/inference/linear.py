"""A model linearised in the inducing variables of its KEP layers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kepsvgp.attention.base import Draws, OfEachExample, not_apart, use_draws, used_modules
from kepsvgp.attention.kep import KEPAttention
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import call, to_device
from kepsvgp.inference.mode import frozen
from kepsvgp.inference.prediction import Prediction
from kepsvgp.maths import gauss_newton, svgp
from kepsvgp.maths.ksvd import at_least_float32, in_float64


class Linearised(NamedTuple):
    """Logits at the posterior mean, and their derivatives by v of each layer, in float64."""

    logits: Float[Tensor, "example class"]
    jacobians: list[Float[Tensor, "example class head value rank"]]


def kep_layers(model: nn.Module) -> list[KEPAttention]:
    """The KEP layers of any model, each once; a model without any is refused."""
    layers = [module for module in used_modules(model) if isinstance(module, KEPAttention)]
    if not layers:
        raise UserError("model must have a KEP layer; got none. Call convert first.")
    return layers


def joint_layers(model: nn.Module) -> list[KEPAttention]:
    """The KEP layers of a model whose draws are those of v, as all that is linear in v asks."""
    layers = kep_layers(model)
    if any(layer.noise == "token" for layer in layers):
        raise UserError(
            "KEP layers must have one draw for a sequence, noise='joint'; got noise='token', "
            "whose draws are not those of v. Train with model.kep.noise=joint."
        )
    return layers


def linearise(model: nn.Module, inputs: Any) -> Linearised:
    """One pass over a batch, and one backward pass a class, for a model from `mode.frozen`.

    Every example has values v of its own, so that the gradient of a sum over examples holds
    that of each.
    """
    layers, leaves, logits = _with_leaves(model, inputs)
    last = logits.shape[-1] - 1
    by_class = [
        torch.autograd.grad(logits[:, c].sum(), leaves, retain_graph=c < last, allow_unused=True)
        for c in range(last + 1 if logits.requires_grad else 0)
    ]
    _check_all_are_read(model, layers, by_class)
    stacked = (torch.stack(each, dim=1).mT for each in zip(*by_class, strict=True))
    return Linearised(in_float64(logits.detach()), [in_float64(each) for each in stacked])


def check_examples_are_apart(model: nn.Module, inputs: Any) -> None:
    """Refuses layers whose draws for the first example reach others, as where tokens come first.

    Derivatives of each example could not be told from each other, nor would its answer be its own.
    """
    _, leaves, logits = _with_leaves(model, inputs)
    if logits.requires_grad:
        found = torch.autograd.grad(logits[0, 0], leaves, allow_unused=True)
        if not all(each is None or (each[1:] == 0).all() for each in found):
            raise not_apart()


def _with_leaves(model: nn.Module, inputs: Any) -> tuple[list[KEPAttention], list[Tensor], Tensor]:
    """Layers, their means as values of every example, and the logits that these give."""
    layers, size = kep_layers(model), batch_size(inputs)
    leaves = [
        at_least_float32(layer.v_mean.detach()).repeat(size, 1, 1, 1).requires_grad_()
        for layer in layers
    ]
    given: dict[nn.Module, Draws] = {
        layer: OfEachExample(v) for layer, v in zip(layers, leaves, strict=True)
    }
    with torch.enable_grad(), use_draws(given):
        return layers, leaves, call(model, inputs)


def _check_all_are_read(
    model: nn.Module, layers: Sequence[nn.Module], by_class: Sequence[Sequence[Tensor | None]]
) -> None:
    """Refuses a layer that the logits have no gradient by: what follows may read other tokens."""
    read = {
        layer for each in by_class for layer, g in zip(layers, each, strict=True) if g is not None
    }
    names = [name for name, layer in model.named_modules() if layer in set(layers) - read]
    if names:
        raise UserError(
            f"the logits must depend on every converted layer; they have no gradient by "
            f"{', '.join(names)}. Convert a layer that they are made of, by its name: "
            "convert(model, layers=['blocks.7.attn'])."
        )


def factor_of(layer: KEPAttention) -> Float[Tensor, "block size size"]:
    """L of q(v), in its blocks and in float64."""
    return in_float64(svgp.lower_cholesky(layer.v_tril_raw.detach())).flatten(0, -3)


def in_blocks(
    jacobian: Float[Tensor, "example class head value rank"], size: int
) -> Float[Tensor, "example class block size"]:
    """The derivatives by blocks of so many values, such as those of q(v)."""
    return jacobian.reshape(*jacobian.shape[:2], -1, size)


def gaussian_logits(
    logits: Float[Tensor, "example class"],
    covariance: Float[Tensor, "example class class"],
    num_samples: int = 64,
) -> Float[Tensor, "sample example class"]:
    """Draws from N(logits, covariance), by the same normal numbers for all examples."""
    # logits that cannot vary, such as those of equal classes, leave it singular
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    noise = _balanced_normals(max(num_samples, 2 * logits.shape[-1]), logits.shape[-1])
    return logits + torch.einsum("n c k, s k -> s n c", root, noise.to(root.device))


def _balanced_normals(count: int, size: int) -> Float[Tensor, "count size"]:
    """Normal numbers, always the same, whose mean is 0 and whose covariance is I as they are."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(count // 2, size, generator=generator, dtype=torch.float64)
    # each pair of ±ε is one direction; orthonormal columns make the sum over them I
    columns = torch.linalg.qr(half).Q * (count // 2) ** 0.5
    return torch.cat([columns, -columns])


def predict_linear(model: nn.Module, inputs: Any) -> Prediction:
    """The prediction of the model linearised in v at its mean: no samples of the network.

    One pass, and one backward pass a class through what follows the first KEP layer, give
    f ~ N(f(m), J L Lᵀ Jᵀ), a Gaussian over as many numbers as there are classes.
    """
    layers = joint_layers(model)
    found = linearise(frozen(model), inputs)
    # q(v) is independent from layer to layer
    covariances = [
        gauss_newton.logit_covariance(in_blocks(jacobian, factor.shape[-1]), factor)
        for jacobian, factor in zip(found.jacobians, map(factor_of, layers), strict=True)
    ]
    logits = gaussian_logits(found.logits, torch.stack(covariances).sum(dim=0))
    own = Prediction.from_logits(logits.to(layers[0].v_mean))
    return replace(own, num_samples=None, average="linear")


def batch_size(inputs: Any) -> int:
    """Examples of a batch, a tensor or a mapping of tensors."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def labelled(
    batches: Iterable[Any], device: torch.device | None
) -> Iterator[tuple[Any, Int[Tensor, " example"]]]:
    """Inputs and labels: of tuples the first two, of mappings all but `labels` and that."""
    for batch in batches:
        if isinstance(batch, Mapping) and "labels" in batch:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            labels = batch["labels"]
        elif isinstance(batch, tuple | list) and len(batch) >= 2:
            inputs, labels = batch[0], batch[1]
        else:
            raise UserError(
                "batches must be (inputs, labels), or mappings that have `labels`; got a "
                f"{type(batch).__name__}."
            )
        yield to_device(inputs, device), labels.to(device)
