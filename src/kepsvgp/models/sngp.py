r"""SNGP's last layers: weights of bounded spectral norm and a random-feature GP as the head.

    φ(h) = √(2/D) cos(Wᵀh + b)            W, b drawn once; kernel ≈ exp(−‖h − h'‖² / 2ℓ²)
    g_k(h) = φ(h)ᵀβ_k                     prior β_k ~ N(0, I)
    β_k | data ≈ N(β̂_k, Σ_k)              Σ_k⁻¹ = I + Σ_i p_ik (1 − p_ik) φ_i φ_iᵀ

β̂ is trained with the network; Σ_k follows from one pass over the training set afterwards. Its
variance grows with the distance from the training data, which bounded weights keep visible.

References:
    Liu et al., 2020, arXiv:2006.10108.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kepsvgp.attention.base import PenalisedLayer, Penalties, draws_of
from kepsvgp.maths.ksvd import in_float64
from kepsvgp.maths.svgp import standard_normal


class RandomFeatureGP(PenalisedLayer):
    """A GP classifier on random Fourier features, with a Laplace posterior.

    Args:
        dim: Width of the pooled features.
        num_classes: Number of classes, each with a GP.
        num_features: Number D of random features.
        lengthscale: ℓ in units of √dim, the norm of normalised features.
    """

    def __init__(
        self, dim: int, num_classes: int, *, num_features: int = 512, lengthscale: float = 1.0
    ) -> None:
        super().__init__()
        frequencies = torch.randn(dim, num_features) / (lengthscale * math.sqrt(dim))
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_features))
        # empty until it is fitted: there is no posterior before there are weights
        self.register_buffer("precision_tril", torch.empty(0))
        self.weight = nn.Parameter(torch.randn(num_features, num_classes) / num_features**0.5)
        self.frequencies: Tensor
        self.phases: Tensor
        self.precision_tril: Tensor
        self.register_load_state_dict_pre_hook(_resize_precision)

    def forward(
        self,
        pooled: Float[Tensor, "*sample batch dim"],
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch class"]:
        """Logits at the mean of the weights, or one set for each draw of them.

        In evaluation mode, without draws, the mean-field logits g / √(1 + π/8 · variance).
        """
        phi = self.features(pooled)
        weights = draws_of(self)
        if weights is None and num_samples is not None:
            weights = self.draw(num_samples, generator=generator)
        if weights is not None:
            return phi @ weights.to(phi.dtype)
        logits = phi @ self.weight
        if self.training or not self.is_fitted:
            return logits
        return logits / (1 + math.pi / 8 * self.variance(phi)).sqrt()

    def features(
        self, pooled: Float[Tensor, "*sample batch dim"]
    ) -> Float[Tensor, "*sample batch feature"]:
        """φ(h) = √(2/D) cos(Wᵀh + b)."""
        angles = pooled @ self.frequencies + self.phases
        return math.sqrt(2 / len(self.phases)) * torch.cos(angles)

    def variance(
        self, phi: Float[Tensor, "*sample batch feature"]
    ) -> Float[Tensor, "*sample batch class"]:
        """φᵀ Σ_k φ."""
        # ‖L_k⁻¹ φ‖² with Σ_k⁻¹ = L_k L_kᵀ
        solved = torch.linalg.solve_triangular(
            self.precision_tril, phi.unsqueeze(-3).mT, upper=False
        )
        return solved.square().sum(-2).mT

    @property
    def is_fitted(self) -> bool:
        """Whether the posterior's covariance is known."""
        return self.precision_tril.numel() > 0

    @torch.no_grad()
    def fit(self, batches: Iterable[Float[Tensor, "_ dim"]]) -> None:
        """Computes the posterior's precision from the pooled features of all training data."""
        num_features, num_classes = self.weight.shape
        weight = in_float64(self.weight)
        eye = torch.eye(num_features, dtype=weight.dtype, device=weight.device)
        precision = eye.repeat(num_classes, 1, 1)
        for pooled in batches:
            phi = in_float64(self.features(pooled))
            p = (phi @ weight).softmax(dim=-1)
            # Σ_i p_ik (1 − p_ik) φ_i φ_iᵀ
            for k, variance in enumerate((p * (1 - p)).mT):
                precision[k] += (phi.mT * variance) @ phi
        self.precision_tril = torch.linalg.cholesky(precision).to(self.weight)

    def penalties(self) -> Penalties:
        """½ ‖β‖², the negative logarithm of the prior, in the place of a KL."""
        prior = 0.5 * self.weight.square().sum()
        return Penalties(kl=prior, ksvd=torch.zeros_like(prior))

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "sample feature class"]:
        """Draws of the weights; the mean itself, so many times, before they were fitted."""
        mean = self.weight.detach()
        if not self.is_fitted:
            return mean.expand(num_samples, *mean.shape)
        shape = (mean.shape[1], mean.shape[0], num_samples)
        noise = standard_normal(shape, mean, generator)
        # Σ_k^½ ε = L_k⁻ᵀ ε
        spread = torch.linalg.solve_triangular(self.precision_tril.mT, noise, upper=True)
        return mean + spread.permute(2, 1, 0)


def _resize_precision(module: RandomFeatureGP, state: Any, prefix: str, *_: Any) -> None:
    # the buffer has the size that was saved: none before the posterior was fitted
    saved = state.get(f"{prefix}precision_tril")
    if saved is not None:
        module.precision_tril = torch.empty_like(saved, device=module.weight.device)


class SpectralBound(nn.Module):
    """W · min(1, c / σ(W)): a weight whose largest singular value is at most about c.

    σ is estimated by power iteration, one step for every training pass.
    """

    def __init__(self, weight: Float[Tensor, "row column"], bound: float) -> None:
        super().__init__()
        self.bound = bound
        left, _, right = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.register_buffer("left", left[:, 0].clone())
        self.register_buffer("right", right[0].clone())
        self.left: Tensor
        self.right: Tensor

    def forward(self, weight: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
        """The weight, scaled down where it is too large."""
        if self.training:
            with torch.no_grad():
                self.left = nn.functional.normalize(weight @ self.right, dim=0)
                self.right = nn.functional.normalize(weight.mT @ self.left, dim=0)
        # σ = uᵀ W v
        sigma = self.left @ weight @ self.right
        return weight * (self.bound / sigma.clamp_min(self.bound))


def bound_spectra(module: nn.Module, bound: float) -> None:
    """Puts a spectral bound on every linear map in `module`, in place."""
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear):
            parametrize.register_parametrization(
                layer, "weight", SpectralBound(layer.weight, bound), unsafe=True
            )
