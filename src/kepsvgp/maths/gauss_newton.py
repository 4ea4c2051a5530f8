"""The Gauss–Newton (Laplace) posterior of a few values v under a softmax likelihood.

With J_n = ∂ logits_n / ∂v and p_n = softmax(logits_n), at the mean of q(v):

    G = Σ_n J_nᵀ (diag p_n − p_n p_nᵀ) J_n        q(v) = N(m, (τ I + G)⁻¹)

G is kept in blocks along its diagonal: one for each head and value (the paper's structure), one
for each head, or one for all. With eigenvalues μ_i of G,

    d_eff = Σ μ_i / (μ_i + τ)        E I[y; v] ≈ d_eff / 2N

is how many values the N examples determine, and about how much draws from q(v) disagree on them,
in nats: an honest posterior over few values is small.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def likelihood_root(
    logits: Float[Tensor, "example class"],
) -> Float[Tensor, "example class class"]:
    """R with R Rᵀ = diag p − p pᵀ, the Fisher information of the logits: R = diag √p − p √pᵀ."""
    probs = logits.softmax(dim=-1)
    root = probs.sqrt()
    return torch.diag_embed(root) - probs.unsqueeze(-1) * root.unsqueeze(-2)


def matrix(
    jacobian: Float[Tensor, "example class block size"], logits: Float[Tensor, "example class"]
) -> Float[Tensor, "block size size"]:
    """The diagonal blocks of G, summed over the examples."""
    # Rᵀ J, so that G = Σ (Rᵀ J)ᵀ (Rᵀ J)
    rows = torch.einsum("n c k, n c b i -> b n k i", likelihood_root(logits), jacobian)
    rows = rows.flatten(1, 2)
    return rows.mT @ rows


def covariance_factor(
    matrix: Float[Tensor, "block size size"], prior_precision: float
) -> Float[Tensor, "block size size"]:
    """Lower-triangular L with L Lᵀ = (τ I + G)⁻¹."""
    size = matrix.shape[-1]
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    precision = matrix + prior_precision * eye
    # the inverse of the reversed matrix' upper factor, reversed, is lower triangular
    reverse = torch.linalg.cholesky(precision.flip(-1, -2))
    return torch.linalg.solve_triangular(reverse.flip(-1, -2), eye, upper=True).mT


def effective_dimension(
    eigenvalues: Float[Tensor, "*shape"], prior_precision: float
) -> Float[Tensor, ""]:
    """d_eff = Σ μ / (μ + τ)."""
    values = eigenvalues.clamp_min(0)
    return (values / (values + prior_precision)).sum()


def log_evidence(
    eigenvalues: Float[Tensor, "*shape"],
    prior_precision: float,
    squared_mean: float,
    gradient: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, ""]:
    """The terms of the Laplace evidence that depend on τ.

    −½ τ ‖m‖² − ½ Σ log(1 + μ_i / τ), and where m is not the mode, ½ Σ g_i² / (μ_i + τ) for the
    gradient g of the log-posterior at m in the eigenbasis of G, which one Newton step would gain.
    """
    values = eigenvalues.clamp_min(0)
    found = -0.5 * prior_precision * squared_mean - 0.5 * (values / prior_precision).log1p().sum()
    if gradient is not None:
        found = found + 0.5 * (gradient.square() / (values + prior_precision)).sum()
    return found


def logit_covariance(
    jacobian: Float[Tensor, "example class block size"],
    factor: Float[Tensor, "block size size"],
) -> Float[Tensor, "example class class"]:
    """J (L Lᵀ) Jᵀ: the covariance of the linearised logits under q(v)."""
    spread = torch.einsum("n c b i, b i j -> n c b j", jacobian, factor).flatten(2)
    return spread @ spread.mT
