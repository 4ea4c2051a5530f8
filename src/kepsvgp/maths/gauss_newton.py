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
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


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


def likelihood_gradient(
    jacobian: Float[Tensor, "example class block size"],
    logits: Float[Tensor, "example class"],
    labels: Int[Tensor, " example"],
) -> Float[Tensor, "block size"]:
    """Gradient of the log-likelihood by v: g = Σ_n J_nᵀ (onehot y_n − p_n)."""
    error = F.one_hot(labels, logits.shape[-1]) - logits.softmax(dim=-1)
    return torch.einsum("n c, n c b i -> b i", error, jacobian)


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
    matrix: Float[Tensor, "block size size"],
    prior_precision: float,
    mean: Float[Tensor, "block size"],
    gradient: Float[Tensor, "block size"],
) -> Float[Tensor, ""]:
    """The evidence log p(y | τ) − log p(y | v = m), by a second-order expansion around any m.

    With g the gradient of the log-likelihood at m, that of the log-joint is h = g − τ m, and

        −½ τ ‖m‖² + ½ hᵀ (τ I + G)⁻¹ h − ½ log det(I + G / τ).

    The second term is what one Newton step would gain: zero where m is the mode.
    """
    factor = covariance_factor(matrix, prior_precision)
    step = factor.mT @ (gradient - prior_precision * mean).unsqueeze(-1)
    # log det(I + G / τ) = −2 log det L − size log τ
    log_det = (factor.diagonal(dim1=-2, dim2=-1) * prior_precision**0.5).log().sum()
    return 0.5 * (step.square().sum() - prior_precision * mean.square().sum()) + log_det


def logit_covariance(
    jacobian: Float[Tensor, "example class block size"],
    factor: Float[Tensor, "block size size"],
) -> Float[Tensor, "example class class"]:
    """J (L Lᵀ) Jᵀ: the covariance of the linearised logits under q(v)."""
    spread = torch.einsum("n c b i, b i j -> n c b j", jacobian, factor).flatten(2)
    return spread @ spread.mT
