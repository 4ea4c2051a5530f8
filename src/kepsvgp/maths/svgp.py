"""The pair of sparse variational GPs whose inducing variables are singular directions.

The paper has inducing variables u_d with prior N(0, Λ²) and f_d = S Λ⁻¹ u_d, for scores S (E or
R), singular values Λ, per head and per value d = 1 … s. In the whitened v = Λ⁻¹ u that is

    p(v_d) = N(0, I)      q(v_d) = N(m_d, L_d L_dᵀ)      f_d = S v_d

so that q(f_d) = N(S m_d, A Aᵀ) with A = S L_d: nothing is inverted, and Λ is in no term but that
of the kernel SVD. A draw of f over all tokens is a draw of v, which both branches share; the
N × s × s factor A is formed only by `posterior`, for inspection.
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
    v_mean: Float[Tensor, "head rank value"],
    v_tril: Float[Tensor, "group block size size"],
    num_draws: int,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "draw head rank value"]:
    """Joint draws v = m + L ε; see `inducing_from_noise`."""
    noise = standard_normal((num_draws, *v_tril.shape[:-1]), v_tril, generator)
    return inducing_from_noise(v_mean, v_tril, noise)


def standard_normal(
    shape: tuple[int, ...], like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "..."]:
    """Standard normal numbers of the type and device of `like`.

    They are drawn where the generator is, so that one of a CPU gives every device the same.
    """
    if generator is None:
        # without the argument, since with it compiled code takes no batch of another size
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    drawn = torch.randn(shape, generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)


def inducing_from_noise(
    v_mean: Float[Tensor, "head rank value"],
    v_tril: Float[Tensor, "group block size size"],
    noise: Float[Tensor, "*draw group block size"],
) -> Float[Tensor, "*draw head rank value"]:
    """v_d = m_d + L_d ε for standard normal ε, with an L_d for each head and value.

    After `fit_posterior` the factor may have larger blocks, one for each head or one for all: of
    the same numbers in the same order, by head, value and inducing variable.
    """
    heads, rank, values = v_mean.shape
    spread = torch.einsum("g b i j, ... g b j -> ... g b i", v_tril, noise)
    return v_mean + spread.reshape(*noise.shape[:-3], heads, values, rank).mT


def unwhiten(
    log_lambda: Float[Tensor, "head rank"], v: Float[Tensor, "*draw head rank value"]
) -> Float[Tensor, "*draw head rank value"]:
    """U = Λ v, the paper's inducing variables."""
    return torch.exp(at_least_float32(log_lambda)).unsqueeze(-1) * v


def read_out(
    merged: Float[Tensor, "*batch head token rank"],
    readout: Float[Tensor, "*draw rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "*both token dim"]:
    """O = M G + b for merged scores M and G = v W, the heads side by side."""
    return (merged @ readout + bias).transpose(-3, -2).flatten(-2)


def marginal_factors(
    v_tril: Float[Tensor, "group block size size"], heads: int, rank: int
) -> Float[Tensor, "head value rank rank"]:
    """L_d of each head and value, of a factor with blocks of any size."""
    if v_tril.shape[-1] == rank:
        return v_tril
    rows = v_tril.unflatten(-2, (-1, rank))
    return torch.linalg.cholesky(rows @ rows.mT).reshape(heads, -1, rank, rank)


class Posterior(NamedTuple):
    """q(f) at the tokens: its mean and a factor of its covariance across tokens."""

    mean: Float[Tensor, "*batch head token value"]
    factor: Float[Tensor, "*batch head value token rank"]


def posterior(
    scores: Float[Tensor, "*batch head token rank"],
    v_mean: Float[Tensor, "head rank value"],
    v_tril: Float[Tensor, "head value rank rank"],
) -> Posterior:
    """Posterior over function values at the tokens that produced `scores` (eq. 16)."""
    # m = S m_d    A = S L_d
    return Posterior(scores @ v_mean, scores.unsqueeze(-3) @ v_tril)


def inducing_kl(
    v_mean: Float[Tensor, "head rank value"],
    v_tril: Float[Tensor, "group block size size"],
) -> Float[Tensor, ""]:
    """KL[q(u) ‖ p(u)] = KL[q(v) ‖ p(v)], summed over heads and values (Proposition 4.1).

    2 KL = tr S_d + m_dᵀ m_d − log|S_d| − s, with S_d = L_d L_dᵀ.
    """
    v_mean = at_least_float32(v_mean)
    # log|S_d| = 2 Σ log diag L_d
    logdet = 2.0 * v_tril.diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (v_tril.square().sum() + v_mean.square().sum() - logdet - v_mean.numel())
