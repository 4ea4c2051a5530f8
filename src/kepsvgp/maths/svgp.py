"""The pair of sparse variational GPs whose inducing variables are singular directions.

For scores S (E or R), singular values Λ, per head and per value d = 1 … s:

    p(u_d) = N(0, Λ²)      q(u_d) = N(m_d, L_d L_dᵀ)      f_d = S Λ⁻¹ u_d

so that q(f_d) = N(S Λ⁻¹ m_d, A Aᵀ) with A = S Λ⁻¹ L_d: nothing is inverted but a diagonal.
A draw of f over all tokens is a draw of u, which both branches share; the N × s × s factor A
is formed only by `posterior`, for inspection.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kepsvgp.maths.ksvd import at_least_float32


def lower_cholesky(raw: Float[Tensor, "*shape rank rank"]) -> Float[Tensor, "*shape rank rank"]:
    """Lower-triangular matrix with a positive diagonal: the diagonal of `raw` is its logarithm."""
    raw = at_least_float32(raw)
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return raw.tril(diagonal=-1) + torch.diag_embed(diagonal)


def sample_inducing(
    u_mean: Float[Tensor, "head rank value"],
    u_tril: Float[Tensor, "head value rank rank"],
    num_draws: int,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "draw head rank value"]:
    """Joint draws u_d = m_d + L_d ε, with an ε of its own for every head and value."""
    noise = standard_normal((num_draws, *u_tril.shape[:-1]), u_tril, generator)
    return inducing_from_noise(u_mean, u_tril, noise)


def standard_normal(
    shape: tuple[int, ...], like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "..."]:
    """Standard normal numbers of the type and device of `like`."""
    if generator is None:
        # without the argument, since with it compiled code takes no batch of another size
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def inducing_from_noise(
    u_mean: Float[Tensor, "head rank value"],
    u_tril: Float[Tensor, "head value rank rank"],
    noise: Float[Tensor, "*draw head value rank"],
) -> Float[Tensor, "*draw head rank value"]:
    """u_d = m_d + L_d ε for standard normal ε."""
    return u_mean + torch.einsum("h v i j, ... h v j -> ... h i v", u_tril, noise)


def whiten(
    log_lambda: Float[Tensor, "head rank"], u: Float[Tensor, "*draw head rank value"]
) -> Float[Tensor, "*draw head rank value"]:
    """Λ⁻¹ u."""
    return torch.exp(-at_least_float32(log_lambda)).unsqueeze(-1) * u


def read_out(
    merged: Float[Tensor, "*batch head token rank"],
    readout: Float[Tensor, "*draw rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "*both token dim"]:
    """O = M G + b for merged scores M and G = Λ⁻¹ u W, the heads side by side."""
    return (merged @ readout + bias).transpose(-3, -2).flatten(-2)


class Posterior(NamedTuple):
    """q(f) at the tokens: its mean and a factor of its covariance across tokens."""

    mean: Float[Tensor, "*batch head token value"]
    factor: Float[Tensor, "*batch head value token rank"]


def posterior(
    scores: Float[Tensor, "*batch head token rank"],
    log_lambda: Float[Tensor, "head rank"],
    u_mean: Float[Tensor, "head rank value"],
    u_tril: Float[Tensor, "head value rank rank"],
) -> Posterior:
    """Posterior over function values at the tokens that produced `scores` (eq. 16)."""
    # S Λ⁻¹
    interpolation = scores * torch.exp(-log_lambda).unsqueeze(-2)
    # m = S Λ⁻¹ m_d    A = S Λ⁻¹ L_d
    return Posterior(interpolation @ u_mean, interpolation.unsqueeze(-3) @ u_tril)


def inducing_kl(
    log_lambda: Float[Tensor, "head rank"],
    u_mean: Float[Tensor, "head rank value"],
    u_tril: Float[Tensor, "head value rank rank"],
) -> Float[Tensor, ""]:
    """KL[q(u) ‖ p(u)], summed over heads and values (Proposition 4.1).

    2 KL = tr(Λ⁻² S_d) + m_dᵀ Λ⁻² m_d + log|Λ²| − log|S_d| − s.
    """
    log_lambda, u_mean = at_least_float32(log_lambda), at_least_float32(u_mean)
    num_values = u_mean.shape[-1]
    inverse = torch.exp(-log_lambda)

    # tr(Λ⁻² S_d) = ‖Λ⁻¹ L_d‖²
    trace = (inverse[:, None, :, None] * u_tril).square().sum()
    # m_dᵀ Λ⁻² m_d
    mahalanobis = (inverse[:, :, None] * u_mean).square().sum()
    # log|Λ²|, once for each value
    logdet_p = 2.0 * num_values * log_lambda.sum()
    # log|S_d| = 2 Σ log diag L_d
    logdet_q = 2.0 * u_tril.diagonal(dim1=-2, dim2=-1).log().sum()

    return 0.5 * (trace + mahalanobis + logdet_p - logdet_q - u_mean.numel())
