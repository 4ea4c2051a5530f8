"""Peers of the novelty: scores of how foreign features are, fitted to those of the training set.

Every score is larger where an example is more foreign, as those of `kepsvgp.metrics.ood`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn.functional import normalize

from kepsvgp.errors import UserError
from kepsvgp.metrics.inputs import Array, as_tensor


class Mahalanobis(NamedTuple):
    """Distance from the nearest class, in units of the spread within classes.

    References:
        Lee et al., 2018, arXiv:1807.03888; with features of norm 1: Müller and Hein, 2025,
        arXiv:2505.18032 (Mahalanobis++).
    """

    means: Float[Tensor, "class feature"]
    precision: Float[Tensor, "feature feature"]
    normalised: bool

    @classmethod
    def fit(
        cls,
        features: Float[Array, "example feature"],
        labels: Integer[Array, " example"],
        *,
        normalised: bool = True,
    ) -> "Mahalanobis":
        """Means of the classes that occur, and the covariance that they share."""
        x, y = _prepared(features, normalised), as_tensor(labels).long()
        if len(x) == 0 or len(x) != len(y):
            raise UserError(f"labels must be those of {len(x)} examples, not none; got {len(y)}.")
        classes, number = y.unique(return_inverse=True)
        means = torch.stack([x[number == c].mean(dim=0) for c in range(len(classes))])
        centred = x - means[number]
        # after a LayerNorm one direction has but the rounding of float32, of this size at most
        precision = torch.linalg.pinv(centred.mT @ centred / len(x), rtol=1e-10, hermitian=True)
        return cls(means, precision, normalised)

    def __call__(self, features: Float[Array, "example feature"]) -> Float[Tensor, " example"]:
        """min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c)."""
        x = _prepared(features, self.normalised)
        # xᵀΣ⁻¹x − 2 xᵀΣ⁻¹μ + μᵀΣ⁻¹μ, without the differences of all pairs
        scaled, scaled_means = x @ self.precision, self.means @ self.precision
        own = (scaled * x).sum(dim=-1, keepdim=True)
        away = own - 2 * scaled @ self.means.mT + (scaled_means * self.means).sum(dim=-1)
        return away.amin(dim=-1).clamp_min(0)


def nearest_neighbour_score(
    known: Float[Array, "known feature"],
    features: Float[Array, "example feature"],
    *,
    k: int = 50,
    chunk: int = 1024,
) -> Float[Tensor, " example"]:
    """Distance to the k-th nearest known example, between features of norm 1.

    References:
        Sun et al., 2022, arXiv:2204.06507.
    """
    bank, x = _prepared(known, normalised=True), _prepared(features, normalised=True)
    if not 1 <= k <= len(bank):
        raise UserError(f"k must lie between 1 and the {len(bank)} known examples; got {k}.")
    parts = [torch.cdist(each, bank).kthvalue(k, dim=-1).values for each in x.split(chunk)]
    return torch.cat(parts) if parts else x.new_zeros(0)


class ViM(NamedTuple):
    """The energy of the logits against a virtual one: the norm outside the principal subspace.

    References:
        Wang et al., 2022, arXiv:2203.10807.
    """

    origin: Float[Tensor, " feature"]
    residual: Float[Tensor, "feature rest"]
    alpha: Float[Tensor, ""]

    @classmethod
    def fit(
        cls,
        features: Float[Array, "example feature"],
        logits: Float[Array, "example class"],
        weight: Float[Array, "class feature"],
        bias: Float[Array, " class"],
        *,
        dim: int | None = None,
    ) -> "ViM":
        """From the training set and the last linear layer; half of the features are principal."""
        x, f, w = _prepared(features), as_tensor(logits).double(), as_tensor(weight).double()
        dim = x.shape[-1] // 2 if dim is None else dim
        if not 1 <= dim < x.shape[-1]:
            raise UserError(f"dim must lie between 1 and {x.shape[-1] - 1}; got {dim}.")
        # the origin at which all logits agree as well as they can: o = −W⁺ b
        origin = -torch.linalg.pinv(w) @ as_tensor(bias).double()
        centred = x - origin
        _, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
        residual = vectors[:, : x.shape[-1] - dim]
        norms = (centred @ residual).norm(dim=-1)
        return cls(origin, residual, f.amax(dim=-1).mean() / norms.mean())

    def __call__(
        self, features: Float[Array, "example feature"], logits: Float[Array, "example class"]
    ) -> Float[Tensor, " example"]:
        """α ‖residual‖ − ln Σ_c exp f_c; the virtual class's probability grows with it."""
        norms = ((_prepared(features) - self.origin) @ self.residual).norm(dim=-1)
        return self.alpha * norms - as_tensor(logits).double().logsumexp(dim=-1)


def _prepared(features: Array, normalised: bool = False) -> Float[Tensor, "example feature"]:
    x = as_tensor(features).double()
    if x.ndim != 2:
        raise UserError(f"features must be examples × features; got shape {tuple(x.shape)}.")
    return normalize(x, dim=-1) if normalised else x
