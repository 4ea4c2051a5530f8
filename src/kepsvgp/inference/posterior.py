"""Fits q(v) of a trained model's KEP layers in one pass: the Gauss–Newton (Laplace) posterior.

The mean stays what it is, so that a model at its posterior mean answers as before; what is
fitted is the spread around it. See `kepsvgp.maths.gauss_newton` for the formulas.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.errors import UserError, told
from kepsvgp.inference.linear import (
    check_examples_are_apart,
    in_blocks,
    joint_layers,
    kep_layers,
    labelled,
    linearise,
)
from kepsvgp.inference.mode import frozen
from kepsvgp.inference.prediction import predict
from kepsvgp.maths import gauss_newton, svgp
from kepsvgp.maths.ksvd import in_float64

Structure = Literal["value", "head", "layer"]
# the first axis of `Linearised.jacobians` that is within a block
_FIRST: dict[Structure, int] = {"value": 4, "head": 3, "layer": 2}

# precisions that are tried, from much wider than the model's own prior, whose scale a converted
# model was never trained for, to next to no spread
PRECISIONS: tuple[float, ...] = tuple(4.0**power for power in range(-8, 9))
# a wider posterior is kept unless that costs more than its standard error and this share of NLL
TOLERANCE = 0.01
# draws by which validation data are predicted
NUM_SAMPLES = 20
# mean trace of diag p − p pᵀ below which examples say next to nothing
SATURATED = 0.02


@dataclass(frozen=True, slots=True)
class PosteriorFit:
    """What `fit_posterior` found.

    Attributes:
        prior_precision: τ, chosen or given; 1 is the prior that the layers are trained with.
        effective_dimension: d_eff of each layer: how many values the examples determine.
        num_examples: Training examples, seen or stood for.
        nll: Validation NLL of every τ that was tried, where τ was chosen by it.
    """

    prior_precision: float
    effective_dimension: tuple[float, ...]
    num_examples: int
    nll: dict[float, float]

    @property
    def expected_epistemic(self) -> float:
        """d_eff / 2N, about how much draws from q(v) disagree, in nats."""
        return sum(self.effective_dimension) / (2 * self.num_examples)


@told
def fit_posterior(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    structure: Structure = "value",
    prior_precision: float | None = None,
    num_train: int | None = None,
    device: torch.device | None = None,
) -> PosteriorFit:
    """Fits the covariance of q(v) of every KEP layer to labelled examples.

    What the model says at its mean stays. So that N(0, I) stays the prior of v, the chosen τ goes
    into its scale: v is multiplied by √τ, and the map that reads it divided by that.

    One pass over `batches`, with one backward pass a class through what follows the first KEP
    layer. Where training examples are learnt by heart they determine nothing, and the posterior
    would be the prior: then the examples of `validation` stand for them, if it is given.

    Args:
        model: Any classifier with KEP layers; changed in place.
        batches: `(inputs, labels, …)`, or mappings that have `labels`.
        validation: Held-out batches, whose NLL moves the prior precision from 1 as far as it gains
            more than its standard error, and more than 1 %.
        structure: A block of the covariance for each head and value, as in the paper, for each
            head, or for the whole layer.
        prior_precision: τ; by default chosen by `validation`, or without it the one of the largest
            evidence of the model linearised around its mean, whatever that is.
        num_train: How many training examples the batches stand for, where they are a part.
        device: Where the batches go.

    Examples:
        >>> found = fit_posterior(convert(model), [(inputs, labels)])
        >>> len(found.effective_dimension)  # of each converted layer
        1
    """
    if prior_precision is not None and not prior_precision > 0:
        raise UserError(f"prior_precision must be positive; got {prior_precision}.")
    layers = joint_layers(model)
    held_out = None if validation is None else list(labelled(validation, device))
    found = _matrices(model, labelled(batches, device), structure).standing_for(num_train)
    if held_out is not None and found.information < SATURATED:
        found = _matrices(model, held_out, structure).standing_for(found.num_examples)
    scores: dict[float, float] = {}
    if prior_precision is not None:
        tau = prior_precision
    elif held_out is not None:
        tau, scores = _by_validation(model, found.matrices, held_out)
    else:
        tau = _by_evidence(layers, found)
    if held_out is None and prior_precision is None:
        _warn(found.information, tau)
    for layer, matrix in zip(layers, found.matrices, strict=True):
        layer.set_factor(gauss_newton.covariance_factor(matrix, tau))
        layer.rescale(tau**0.5)
    values = map(torch.linalg.eigvalsh, found.matrices)
    dims = [gauss_newton.effective_dimension(each, tau).item() for each in values]
    return PosteriorFit(tau, tuple(dims), found.num_examples, scores)


@told
def find_spread(
    model: nn.Module,
    validation: Iterable[Any],
    *,
    tolerance: float = TOLERANCE,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    device: torch.device | None = None,
) -> float:
    """Widens q(v) by the largest common factor of L that the validation NLL bears.

    The NLL may be higher than the least that any factor gives by `tolerance`, as a share of it.
    Factors are searched by bisection between 1/100 and 100, on the same draws. Returns the factor.

    Examples:
        >>> model = convert(model)
        >>> found = fit_posterior(model, [(inputs, labels)])
        >>> find_spread(model, [(inputs, labels)]) > 0
        True
    """
    if not tolerance >= 0:
        raise UserError(f"tolerance must be a share from 0 on; got {tolerance}.")
    held_out = list(labelled(validation, device))
    layers = kep_layers(model)
    factors = [svgp.lower_cholesky(layer.v_tril_raw.detach()) for layer in layers]

    def nll(log_factor: float) -> float:
        for layer, factor in zip(layers, factors, strict=True):
            layer.set_factor(factor * math.exp(log_factor))
        return _losses(model, held_out, num_samples, seed).mean().item()

    grid = torch.linspace(-math.log(100), math.log(100), 13).tolist()
    scores = [nll(each) for each in grid]
    bound = min(scores) * (1 + tolerance)
    last = max(i for i, score in enumerate(scores) if score <= bound)
    low, high = grid[last], grid[min(last + 1, len(grid) - 1)]
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (middle, high) if nll(middle) <= bound else (low, middle)
    nll(low)
    return math.exp(low)


@dataclass(frozen=True, slots=True)
class _Matrices:
    matrices: list[Float[Tensor, "block size size"]]
    gradients: list[Float[Tensor, "block size"]]
    num_examples: int
    information: float
    """Mean trace of the likelihood's Fisher information."""

    def standing_for(self, num_train: int | None) -> "_Matrices":
        """What so many examples like these would give."""
        if num_train is None:
            return self
        share = num_train / self.num_examples
        matrices, gradients = (
            [share * each for each in all_layers] for all_layers in (self.matrices, self.gradients)
        )
        return _Matrices(matrices, gradients, num_train, self.information)


def _matrices(
    model: nn.Module, batches: Iterable[tuple[Any, Tensor]], structure: Structure
) -> _Matrices:
    """G and g of every layer, in blocks of the asked structure, in float64."""
    copy, count, information = frozen(model), 0, 0.0
    sums: list[list[Tensor]] = []
    for inputs, labels in batches:
        if count == 0:
            check_examples_are_apart(copy, inputs)
        logits, jacobians = linearise(copy, inputs)
        labels = labels.to(logits.device)
        blocks = [in_blocks(each, math.prod(each.shape[_FIRST[structure] :])) for each in jacobians]
        new = [
            [gauss_newton.matrix(each, logits) for each in blocks],
            [gauss_newton.likelihood_gradient(each, logits, labels) for each in blocks],
        ]
        sums = [[*map(torch.add, *pair)] for pair in zip(sums, new, strict=True)] if sums else new
        count += len(logits)
        information += (1 - logits.softmax(-1).square().sum(-1)).sum().item()
    if count == 0:
        raise UserError("batches must hold at least one example; got none.")
    matrices, gradients = sums
    return _Matrices(matrices, gradients, count, information / count)


def _by_evidence(layers: Sequence[KEPAttention], found: _Matrices) -> float:
    """The precision of the largest evidence of the model linearised around its means."""
    means = [
        in_float64(layer.v_mean.detach()).mT.reshape(gradient.shape)
        for layer, gradient in zip(layers, found.gradients, strict=True)
    ]

    def evidence(tau: float) -> float:
        parts = zip(found.matrices, means, found.gradients, strict=True)
        return sum(gauss_newton.log_evidence(g, tau, m, grad).item() for g, m, grad in parts)

    return max(PRECISIONS, key=evidence)


def _warn(information: float, tau: float) -> None:
    """Of a posterior that the evidence makes as wide as the prior, or a point."""
    if information < SATURATED:
        found = (
            "predicted with certainty, so that they determine next to nothing and the "
            "posterior would be the prior"
        )
    elif tau == PRECISIONS[-1]:
        found = "fitted as well by the mean alone, so that the evidence leaves no spread"
    else:
        return
    advice = "give `validation`, or batches that the model was not trained on"
    warnings.warn(f"the examples are {found}; {advice}.", stacklevel=4)


def _by_validation(
    model: nn.Module,
    matrices: Sequence[Tensor],
    held_out: Sequence[Any],
) -> tuple[float, dict[float, float]]:
    """From τ = 1 on while the sampled prediction gains more than noise and `TOLERANCE`.

    Narrower first: with spreads as wide as the prior's the network is far from linear in v.
    Returns τ and the NLL of every τ that was tried.
    """
    layers = kep_layers(model)
    if not held_out:
        raise UserError("validation must hold at least one example; got none.")
    losses: dict[float, Tensor] = {}

    def losses_of(tau: float) -> Tensor:
        if tau not in losses:
            for layer, matrix in zip(layers, matrices, strict=True):
                layer.set_factor(gauss_newton.covariance_factor(matrix, tau))
            losses[tau] = _losses(model, held_out, NUM_SAMPLES, seed=0)
        return losses[tau]

    def walk(best: float, others: Iterable[float]) -> float:
        for tau in others:
            gain = losses_of(best) - losses_of(tau)
            error = gain.std(correction=0) / len(gain) ** 0.5
            if gain.mean() <= max(error, TOLERANCE * losses_of(best).mean()):
                break
            best = tau
        return best

    prior = PRECISIONS.index(1.0)
    best = walk(1.0, PRECISIONS[prior + 1 :])
    if best == 1.0:
        best = walk(1.0, reversed(PRECISIONS[:prior]))
    return best, {tau: loss.mean().item() for tau, loss in losses.items()}


def _losses(
    model: nn.Module, held_out: Sequence[Any], num_samples: int, seed: int
) -> Float[Tensor, " example"]:
    """Negative log-likelihood of every example, on the same draws."""
    found = []
    for inputs, labels in held_out:
        generator = torch.Generator().manual_seed(seed)
        probs = predict(model, inputs, num_samples=num_samples, generator=generator).probs
        log_probs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
        found.append(F.nll_loss(log_probs, labels, reduction="none"))
    return torch.cat(found)
