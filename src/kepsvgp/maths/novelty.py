"""How far a token is from the training distribution, seen through the attention kernel.

The paper's integral equations (12–14) are about the distribution of the tokens. With the feature
maps φ_q, φ_k of a head and the second moments C_q = E φ_q φ_qᵀ, C_k = E φ_k φ_kᵀ over the tokens
of the training set, the prior covariance of the GP over queries is

    k(x, x′) = ∫ κ(x, z) κ(x′, z) p(z) dz = φ_q(x)ᵀ C_k φ_q(x′)

and its eigenfunctions under p follow from B = C_k^½ C_q C_k^½ = V Λ² Vᵀ:

    e_i(x) = v_iᵀ C_k^½ φ_q(x) / λ_i        ∫ k(x, x′) e_i(x′) p(x′) dx′ = λ_i² e_i(x)

The leading s of them explain Σ λ_i² e_i(x)² of the variance k(x, x); the rest is what the paper
leaves out of its posterior (Remark 3.1). Both are small where a query matches no key, so a token
is judged by Σ e_i(x)² over all of them, the variance in units of its own scale. That is the
leverage φ_qᵀ C_q⁻¹ φ_q, whatever C_k is. Keys are treated alike, with the roles exchanged.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.maths.ksvd import in_float64


class Moments(NamedTuple):
    """Sums over tokens, in float64, from which means and second moments follow."""

    num_tokens: Float[Tensor, ""]
    total: Float[Tensor, "*shape feature"]
    second: Float[Tensor, "*shape feature feature"]

    def __add__(self, other: "Moments") -> "Moments":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sums over the tokens of both."""
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def mean(self) -> Float[Tensor, "*shape feature"]:
        """E φ."""
        return self.total / self.num_tokens

    @property
    def second_moment(self) -> Float[Tensor, "*shape feature feature"]:
        """C = E φ φᵀ."""
        return self.second / self.num_tokens

    @property
    def covariance(self) -> Float[Tensor, "*shape feature feature"]:
        """E (φ − E φ)(φ − E φ)ᵀ."""
        mean = self.mean
        return self.second_moment - mean.unsqueeze(-1) * mean.unsqueeze(-2)


def moments(
    features: Float[Tensor, "*shape token feature"], is_real: Bool[Tensor, " token"] | None = None
) -> Moments:
    """The sums over one batch of tokens, padding left out."""
    features = in_float64(features)
    if is_real is not None:
        is_real = is_real.to(features.device)
        features = features * is_real.unsqueeze(-1)
        count = is_real.sum()
    else:
        count = torch.tensor(features.shape[-2], device=features.device)
    return Moments(count.double(), features.sum(dim=-2), features.mT @ features)


def precision(
    matrix: Float[Tensor, "*shape feature feature"], ridge: float = 1e-3
) -> Float[Tensor, "*shape feature feature"]:
    """(C + ε I)⁻¹ with ε a share of the mean eigenvalue, so that it does not depend on scale."""
    size = matrix.shape[-1]
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    # features that are zero throughout have no scale
    floor = torch.where(scale > 0, ridge * scale, 1.0)
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.inv(matrix + floor[..., None, None] * eye)


def leverage(
    features: Float[Tensor, "*#shape token feature"],
    precision: Float[Tensor, "*#shape feature feature"],
) -> Float[Tensor, "... token"]:
    """φᵀ (C + ε I)⁻¹ φ; its mean over the training tokens is the number of features."""
    return ((features @ precision) * features).sum(dim=-1)


def mean_leverage(
    features: Float[Tensor, "batch pair token feature"],
    precision: Float[Tensor, "pair feature feature"],
    mask: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch pair"]:
    """The mean of `leverage` over the real tokens; zero for a sequence that has none.

    E φᵀ P φ = ⟨P, E φ φᵀ⟩, which leaves nothing as large as the features.
    """
    if mask is None:
        count = features.new_tensor(features.shape[2])
    else:
        features = features * mask[:, None, :, None]
        count = mask.sum(dim=-1).clamp_min(1)[:, None]
    return ((features.mT @ features) * precision).sum(dim=(-2, -1)) / count


def prior_variance(
    queries: Float[Tensor, "*shape token feature"],
    key_moment: Float[Tensor, "*shape feature feature"],
) -> Float[Tensor, "*shape token"]:
    """k(x, x) = ∫ κ(x, z)² p(z) dz = φ_qᵀ C_k φ_q."""
    return leverage(queries, key_moment)


class Eigenfunctions(NamedTuple):
    """The eigenfunctions of the training distribution's kernel, the leading ones first."""

    maps: Float[Tensor, "*shape feature feature"]
    """Columns C_k^½ v_i: λ_i e_i(x) is φ_q(x)ᵀ times column i."""
    singular_values: Float[Tensor, "*shape feature"]
    """λ_i, the singular values of the kernel under the distribution of the tokens."""


def eigenfunctions(
    query_moment: Float[Tensor, "*shape feature feature"],
    key_moment: Float[Tensor, "*shape feature feature"],
) -> Eigenfunctions:
    """From C_q and C_k; exchanged, those of the kernel over keys."""
    root = _square_root(key_moment)
    # B = C_k^½ C_q C_k^½ = V Λ² Vᵀ
    values, vectors = torch.linalg.eigh(root @ query_moment @ root)
    values, vectors = values.flip(-1), vectors.flip(-1)
    return Eigenfunctions(root @ vectors, values.clamp_min(0).sqrt())


def explained_variance(
    queries: Float[Tensor, "*shape token feature"], found: Eigenfunctions, rank: int
) -> Float[Tensor, "*shape token"]:
    """Σ λ_i² e_i(x)² over the leading eigenfunctions: what s inducing variables account for."""
    return (queries @ found.maps[..., :rank]).square().sum(dim=-1)


def residual_variance(
    queries: Float[Tensor, "*shape token feature"], found: Eigenfunctions, rank: int
) -> Float[Tensor, "*shape token"]:
    """What is left of the prior variance: k(x, x) − Σ λ_i² e_i(x)²."""
    return (queries @ found.maps[..., rank:]).square().sum(dim=-1)


def _square_root(matrix: Float[Tensor, "*shape n n"]) -> Float[Tensor, "*shape n n"]:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
