r"""Sparse Gaussian process attention with decoupled inducing points (SGPA).

One head, one output dimension c. Queries and keys share a projection, so the attention
kernel is symmetric; γ are the keys of the sequence's own tokens, with their values v_γ as
weights, and β a few keys learnt for all sequences, with weights v_β and factors S_c^½:

    mean      K_qγ v_γ − K_qβ K_ββ⁻¹ K_βγ v_γ + K_qβ v_β
    variance  diag K_qq − diag K_qβ K_ββ⁻¹ K_βq + diag K_qβ L⁻ᵀ S_c L⁻¹ K_βq,   K_ββ = L Lᵀ
    2 KL      tr S + v_βᵀ K_ββ v_β + v_γᵀ (K_γγ − K_γβ K_ββ⁻¹ K_βγ) v_γ − M − log|S|

so that with A = L⁻¹ K_βq everything is a product; only the M × M matrix K_ββ is factored.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import PenalisedAttention, Penalties, WholeLinear, draws_of
from kepsvgp.errors import UserError
from kepsvgp.maths.ksvd import at_least_float32
from kepsvgp.maths.svgp import lower_cholesky, standard_normal
from kepsvgp.ops import dispatch, noise
from kepsvgp.ops.dropout import Dropout

Kernel = Literal["exponential", "ard"]


class Marginals(NamedTuple):
    """What SGPA says of each token and output dimension, and what it costs."""

    mean: Float[Tensor, "*batch head token value"]
    variance: Float[Tensor, "*batch head token value"]
    kl: Float[Tensor, ""]


class Inducing(NamedTuple):
    """The global inducing points of all heads: keys, weights and covariance factors."""

    keys: Float[Tensor, "head inducing feature"]
    mean: Float[Tensor, "head inducing value"]
    tril: Float[Tensor, "head value inducing inducing"]


def kernel_matrix(
    a: Float[Tensor, "*batch head left feature"],
    b: Float[Tensor, "*other head right feature"],
    log_scale: Float[Tensor, " head"],
    log_lengthscale: Float[Tensor, "head feature"],
    *,
    kernel: Kernel,
) -> Float[Tensor, "*both head left right"]:
    """Kernel between two sets of points of each head.

    With a' = a / lengthscale: `exponential` is scale · exp(a'·b'), the unnormalised softmax
    kernel; `ard` is scale · exp(−½ ‖a' − b'‖²).
    """
    inverse = torch.exp(-log_lengthscale).unsqueeze(-2)

    def with_ones(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # t' and what it adds to the exponent by itself: half of log scale, and −½ ‖t'‖² of
        # −½ ‖a' − b'‖² = a'·b' − ½ ‖a'‖² − ½ ‖b'‖²
        t = t * inverse
        half = (0.5 * log_scale)[:, None, None]
        own = half - 0.5 * t.square().sum(-1, keepdim=True) if kernel == "ard" else half
        return t, own.expand(*t.shape[:-1], 1), t.new_ones(1).expand(*t.shape[:-1], 1)

    a, own_a, ones_a = with_ones(a)
    b, own_b, ones_b = with_ones(b)
    # the whole exponent as one product, and no other tensor of its size
    exponent = torch.cat([a, own_a, ones_a], dim=-1) @ torch.cat([b, ones_b, own_b], dim=-1).mT
    return exponent.exp_()


def kernel_diagonal(
    a: Float[Tensor, "*batch head token feature"],
    log_scale: Float[Tensor, " head"],
    log_lengthscale: Float[Tensor, "head feature"],
    *,
    kernel: Kernel,
) -> Float[Tensor, "*batch head token"]:
    """Diagonal of `kernel_matrix(a, a)`."""
    if kernel == "ard":
        return torch.exp(log_scale).unsqueeze(-1).expand(a.shape[:-1])
    squares = (a * torch.exp(-log_lengthscale).unsqueeze(-2)).square().sum(-1)
    return torch.exp(squares + log_scale.unsqueeze(-1))


def cholesky(
    matrix: Float[Tensor, "*batch n n"], *, jitter: float, attempts: int = 5
) -> Float[Tensor, "*batch n n"]:
    """Lower factor of `matrix + jitter · I`, with ten times the jitter where that fails.

    An accelerator is asked for no value, which would have to be waited for: a matrix that fails
    to the last has a factor of NaN there.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    if matrix.is_cpu:
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * eye)
        if not info.any():
            return factor
    jitters = jitter * 10.0 ** torch.arange(attempts, dtype=matrix.dtype, device=matrix.device)
    tried = torch.stack([matrix.detach() + some * eye for some in jitters])
    has_failed = torch.linalg.cholesky_ex(tried).info.ne(0).int()
    # how often before the first success
    failures = has_failed.cumprod(0).sum(0)
    chosen = jitters[failures.clamp(max=attempts - 1)]
    factor = torch.linalg.cholesky_ex(matrix + chosen[..., None, None] * eye).L
    is_lost = failures == attempts
    if is_lost.is_cpu and is_lost.any():
        raise FloatingPointError(
            "the kernel matrix of SGPA's inducing keys must be positive definite; it is not, even "
            f"with {jitter * 10 ** (attempts - 1):.0e} on its diagonal. A smaller learning rate "
            "or fewer inducing points may help."
        )
    return factor.masked_fill(is_lost[..., None, None], torch.nan)


def marginals(
    queries: Float[Tensor, "*batch head token feature"],
    values: Float[Tensor, "*batch head token value"],
    inducing: Inducing,
    log_scale: Float[Tensor, " head"],
    log_lengthscale: Float[Tensor, "head feature"],
    *,
    kernel: Kernel,
    jitter: float,
) -> Marginals:
    """Mean and variance of every token, and KL[q ‖ p] summed over heads and dimensions.

    The KL belongs to one sequence; the part that depends on its tokens is averaged over the
    batch. Tokens whose values are zero take part in nothing, which is how padding is masked.
    """

    def k(a: Tensor, b: Tensor) -> Tensor:
        return kernel_matrix(a, b, log_scale, log_lengthscale, kernel=kernel)

    k_inducing = k(inducing.keys, inducing.keys)
    tril = cholesky(k_inducing, jitter=jitter)
    num_values, num_inducing = inducing.tril.shape[1:3]
    factors = inducing.tril.movedim(1, 2).flatten(2)

    def of_sequences(queries: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance, and what the tokens add to 2 KL."""
        k_cross = k(inducing.keys, queries)
        # A = L⁻¹ K_βq
        a = torch.linalg.solve_triangular(tril, k_cross, upper=False)

        # K_qγ v_γ, A v_γ
        own = k(queries, queries) @ values
        projected = a @ values
        # K_qγ v_γ − K_qβ K_ββ⁻¹ K_βγ v_γ + K_qβ v_β
        mean = own - a.mT @ projected + k_cross.mT @ inducing.mean

        # diag K_qq − Σ A²
        prior = kernel_diagonal(queries, log_scale, log_lengthscale, kernel=kernel)
        residual = prior - a.square().sum(-2)
        # Σ (Aᵀ S_c^½)², all c in one product
        spread = (a.mT @ factors).unflatten(-1, (num_values, num_inducing)).square().sum(-1)

        # v_γᵀ K_γγ v_γ − v_γᵀ K_γβ K_ββ⁻¹ K_βγ v_γ, summed over heads and dimensions
        added = (values * own).sum((-3, -2, -1)) - projected.square().sum((-3, -2, -1))
        return mean, residual.unsqueeze(-1) + spread, added

    width = max(queries.shape[-2], factors.shape[-1])
    mean, variance, added = dispatch.by_sequence(of_sequences, (queries, values), width=width)

    trace = inducing.tril.square().sum()
    mahalanobis = (inducing.mean * (k_inducing @ inducing.mean)).sum()
    log_det = 2.0 * inducing.tril.diagonal(dim1=-2, dim2=-1).log().sum()
    kl = 0.5 * (trace + mahalanobis + added.mean() - inducing.mean.numel() - log_det)
    return Marginals(mean, variance, kl)


class SGPAttention(PenalisedAttention):
    r"""Multi-head self-attention as a sparse GP with decoupled inducing points.

    Each head has one GP per output dimension, a symmetric kernel on its projected tokens and
    `num_inducing` keys, learnt in the space of the tokens and projected by the rows of the
    query map that belong to the head. A draw is $f = \mu + \sigma \varepsilon$ with a number
    of its own for every token and dimension: the method keeps marginal variances only.

    Args:
        dim: Width of the tokens, divided evenly among the heads.
        num_heads: Number of heads.
        num_inducing: Global inducing keys of a head; its paper has 5 for CoLA and 50 for IMDB.
        kernel: `"exponential"` (its paper's choice for text) or `"ard"` (for images).
        dropout: Dropout on the output.
        jitter: Added to the diagonal of the inducing keys' kernel matrix before it is
            factored; ten times as much, up to four times over, where that does not suffice.

    References:
        Chen and Li, 2023, arXiv:2303.02444.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_inducing: int = 50,
        kernel: Kernel = "exponential",
        dropout: float = 0.0,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        checks.heads("dim", dim, num_heads)
        checks.choice("kernel", kernel, Kernel)
        checks.positive(num_inducing=num_inducing)
        self.dim, self.num_heads, self.num_inducing = dim, num_heads, num_inducing
        self.kernel: Kernel = kernel
        self.jitter = jitter
        head_dim = dim // num_heads
        self.to_qv = WholeLinear(dim, 2 * dim, bias=False)
        self.to_output = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)
        self.inducing_keys = nn.Parameter(torch.randn(num_heads, num_inducing, dim))
        self.inducing_mean = nn.Parameter(0.1 * torch.randn(num_heads, num_inducing, head_dim))
        self.inducing_tril_raw = nn.Parameter(
            torch.zeros(num_heads, head_dim, num_inducing, num_inducing)
        )
        # Attention weights are not normalised: a scale of e⁻⁴ lets some fifty tokens add up to
        # about one. A lengthscale of d^¼ makes the exponent of softmax attention, q·k / √d.
        self.log_scale = nn.Parameter(torch.full((num_heads,), -4.0))
        log_lengthscale = torch.full((num_heads, head_dim), float(head_dim)).log() / 4
        self.log_lengthscale = nn.Parameter(log_lengthscale)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """A draw of the attention output; see `KEPAttention.forward` for the arguments."""
        checks.tokens(x, mask, num_samples, dim=self.dim, num_tokens=None)
        posterior = self.marginals(x, mask)
        # rounding may leave a variance of zero just below it
        floor = torch.finfo(posterior.variance.dtype).tiny
        std = posterior.variance.clamp_min(floor).sqrt()
        eps = self._noise(x, num_samples, generator).to(std)
        values = posterior.mean + std * eps
        merged = values.transpose(-3, -2).flatten(-2).to(x.dtype)
        out = self.dropout(self.to_output(merged))
        if self.training:
            self.remember(posterior.kl, out)
        return out

    def marginals(
        self,
        x: Float[Tensor, "*batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> Marginals:
        """Mean and variance of all heads' outputs, before the output map."""
        w_q = self.to_qv.weight[: self.dim].unflatten(0, (self.num_heads, -1))
        # (… 2·head token feature): queries of all heads, then values of all heads
        qv = self.to_qv(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(-3, -2)
        queries, values = at_least_float32(qv).chunk(2, dim=-3)
        if mask is not None:
            # zero values take part in nothing; zero queries keep their kernels finite
            queries, values = (t * mask[:, None, :, None] for t in (queries, values))
        # the keys of a head by the rows of that head: (head inducing dim) (head feature dim)ᵀ
        keys = at_least_float32(self.inducing_keys @ w_q.mT)
        mean = at_least_float32(self.inducing_mean)
        # exponentials and factors in single precision, whatever the rest is in
        with dispatch.without_autocast(x.device.type):
            return marginals(
                queries,
                values,
                Inducing(keys, mean, lower_cholesky(self.inducing_tril_raw)),
                at_least_float32(self.log_scale),
                at_least_float32(self.log_lengthscale),
                kernel=self.kernel,
                jitter=self.jitter,
            )

    def penalties(self) -> Penalties:
        """KL of the last training pass, the mean over its sequences; forgotten by the call."""
        kl = torch.stack(self.recall()).sum()
        return Penalties(kl=kl.new_zeros(()), ksvd=kl.new_zeros(()), sequence_kl=kl)

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Int[Tensor, " sample"]:
        """Seeds of the noise of each sample: its numbers follow from the seed and the place."""
        return noise.draw_seeds(num_samples, generator=generator)

    def _noise(
        self, x: Tensor, num_samples: int | None, generator: torch.Generator | None
    ) -> Float[Tensor, "*sample batch head token feature"]:
        num_tokens, head_dim = x.shape[-2], self.dim // self.num_heads
        held = draws_of(self)
        if held is None and num_samples is None:
            shape = (*x.shape[:-2], self.num_heads, num_tokens, head_dim)
            return standard_normal(shape, at_least_float32(x), generator)
        seeds = held
        if seeds is None:
            seeds = self.draw(num_samples or 1, generator=generator)
        if len(seeds) != (num_samples or 1):
            raise UserError(f"num_samples must be the {len(seeds)} fixed draws; got {num_samples}.")
        eps = noise.normal(seeds.to(x.device), self.num_heads, num_tokens, head_dim)
        # the sequences of a batch share the noise of a sample
        return eps if num_samples is None else eps.unsqueeze(1)

    def extra_repr(self) -> str:
        """The settings that the parameters do not show."""
        return (
            f"num_heads={self.num_heads}, num_inducing={self.num_inducing}, kernel={self.kernel!r}"
        )
