"""SV-DKL's last layer: an additive grid GP on learnt features, mixed into logits.

    z = tanh(V h)                       J learnt features in (−1, 1)
    f_j ~ GP(0, k_j),  j = 1 … J        one-dimensional, with inducing values u_j on a grid
    f_j(z_j) = w(z_j)ᵀ u_j              local cubic interpolation of the grid, w has 4 weights
    logits = A f                        mixing weights

q(u_j) = N(m_j, L_j L_jᵀ), its grid and kernels are GPyTorch's; interpolation and KL ask for no
values, which an accelerator would have to be waited for. A function is fixed by its values on
the grid, so a sample is one draw of all u_j for the whole data set, and a prediction does not
depend on its batch.

References:
    Wilson et al., 2016, arXiv:1611.00336.
"""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kepsvgp.attention.base import PenalisedLayer, Penalties, draws_of
from kepsvgp.errors import UserError
from kepsvgp.maths.svgp import standard_normal

try:
    with warnings.catch_warnings():
        # what GPyTorch's own dependencies use is not for our users to mend
        warnings.simplefilter("ignore")
        import gpytorch
except ModuleNotFoundError as error:
    raise UserError(
        f"method 'svdkl' must have GPyTorch; {error.name} is not installed. "
        "Run `pip install 'kepsvgp[gp]'`."
    ) from None


class GridGP(gpytorch.models.ApproximateGP):
    """Independent GPs on (−1, 1), each with a full Gaussian over its values on a grid."""

    def __init__(self, num_gps: int, grid_size: int) -> None:
        batch = torch.Size([num_gps])
        q = gpytorch.variational.CholeskyVariationalDistribution(grid_size, batch_shape=batch)
        strategy = gpytorch.variational.GridInterpolationVariationalStrategy(
            self, grid_size, [(-1.0, 1.0)], q
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=batch), batch_shape=batch
        )

    def forward(self, x: Float[Tensor, "*gp point 1"]) -> gpytorch.distributions.MultivariateNormal:
        """The prior at some points."""
        mean = self.mean_module(x)
        assert isinstance(mean, Tensor)
        return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))


class AdditiveGridGP(PenalisedLayer):
    """A head that maps pooled features through one-dimensional GPs to logits.

    Args:
        dim: Width of the pooled features.
        num_classes: Number of classes.
        num_features: Number J of learnt features, each with a GP.
        grid_size: Grid points of each GP.
    """

    def __init__(
        self, dim: int, num_classes: int, *, num_features: int = 16, grid_size: int = 64
    ) -> None:
        super().__init__()
        self.to_features = nn.Linear(dim, num_features)
        self.gp = GridGP(num_features, grid_size)
        self.mixing = nn.Linear(num_features, num_classes, bias=False)
        self._start_at_prior()

    @torch.no_grad()
    def start_from(self, head: nn.Linear, *, scale: float = 8.0, spread: float = 0.05) -> None:
        """Makes the mean of the GPs the logits of a trained linear head, softly bounded.

        The first features are its logits in units of `scale`, z_k = tanh(f_k / scale); their GPs
        have the mean scale · z, standard deviations of `spread` times the prior's, and are mixed
        as they are. GPs beyond the classes start at the prior, with no weight in the mixture.
        """
        num_classes, num_features = self.mixing.weight.shape
        rows = min(num_classes, num_features)
        self.to_features.weight[:rows] = head.weight[:rows] / scale
        self.to_features.bias[:rows] = head.bias[:rows] / scale
        self.mixing.weight.copy_(torch.eye(num_classes, num_features))
        self.gp.covar_module.outputscale = scale**2
        strategy: Any = self.gp.variational_strategy
        q = self._start_at_prior()
        q.chol_variational_covar[:rows] *= spread
        q.variational_mean[:rows] = scale * strategy.grid.squeeze(-1)

    @torch.no_grad()
    def _start_at_prior(self) -> Any:
        """Sets q(u) to p(u), in place of GPyTorch at the first pass, and returns it."""
        strategy: Any = self.gp.variational_strategy
        q = strategy._variational_distribution
        q.variational_mean.zero_()
        q.chol_variational_covar.copy_(torch.linalg.cholesky(self._prior()))
        strategy.variational_params_initialized.fill_(1)
        return q

    def forward(
        self,
        pooled: Float[Tensor, "*sample batch dim"],
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch class"]:
        """Logits of a draw for every example, or of draws that all examples share."""
        z = torch.tanh(self.to_features(pooled))
        draws = draws_of(self)
        if draws is None and num_samples is not None:
            draws = self.draw(num_samples, generator=generator)
        if draws is not None:
            return self.mixing(interpolate(*self._weights(z), draws))
        # all examples independent given their marginals
        index, weight = self._weights(z)
        mean, tril = self._q()
        features = torch.arange(len(mean), device=z.device).unsqueeze(-1)
        # w(z)ᵀ m and L ᵀ w(z), from the four entries of the grid around z
        centre = (mean[features, index] * weight).sum(-1)
        spread = (tril[features, index] * weight.unsqueeze(-1)).sum(-2)
        std = spread.square().sum(-1).add(1e-10).sqrt()
        return self.mixing(centre + std * standard_normal(z.shape, z, generator))

    def penalties(self) -> Penalties:
        """KL[q(u) ‖ p(u)] of all GPs."""
        mean, tril = self._q()
        prior = torch.linalg.cholesky_ex(self._prior()).L
        # with C = chol K: ½ (‖C⁻¹ L‖² + ‖C⁻¹ m‖² − M) + log|C| − log|L|
        both = torch.cat([tril, mean.unsqueeze(-1)], dim=-1)
        squares = torch.linalg.solve_triangular(prior, both, upper=False).square().sum()
        log_dets = [t.diagonal(dim1=-2, dim2=-1).abs().log().sum() for t in (prior, tril)]
        kl = 0.5 * (squares - mean.numel()) + log_dets[0] - log_dets[1]
        return Penalties(kl=kl, ksvd=torch.zeros_like(kl))

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "sample feature grid"]:
        """Draws of the functions, by their values on the grid."""
        mean, tril = self._q()
        noise = standard_normal((*mean.shape, num_samples), mean, generator)
        # u_j = m_j + L_j ε
        return mean + (tril @ noise).movedim(-1, 0)

    def _q(self) -> tuple[Float[Tensor, "feature grid"], Float[Tensor, "feature grid grid"]]:
        """The mean m and the factor L of all GPs."""
        strategy: Any = self.gp.variational_strategy
        q = strategy._variational_distribution
        return q.variational_mean, q.chol_variational_covar.tril()

    def _prior(self) -> Float[Tensor, "feature grid grid"]:
        """K of all GPs on the grid, with GPyTorch's jitter."""
        grid, kernel = self.gp.variational_strategy.grid, self.gp.covar_module
        # s² exp(−½ (x − x′)² / ℓ²)
        exponent = -0.5 * ((grid - grid.mT) / kernel.base_kernel.lengthscale).square()
        jitter = 1e-3 * torch.eye(len(grid), dtype=exponent.dtype, device=grid.device)
        return kernel.outputscale[:, None, None] * exponent.exp() + jitter

    def _weights(
        self, z: Float[Tensor, "*sample batch feature"]
    ) -> tuple[Int[Tensor, "*sample batch feature 4"], Float[Tensor, "*sample batch feature 4"]]:
        """The four points of the grid around z, and their weights by cubic convolution."""
        grid = self.gp.variational_strategy.grid.squeeze(-1)
        place = (z - grid[0]) / (grid[1] - grid[0])
        # the grid goes one step beyond (−1, 1) on either side
        left = place.detach().floor().clamp(1, len(grid) - 3)
        offset = torch.arange(-1, 3, device=z.device)
        distance = ((place - left).unsqueeze(-1) - offset).abs()
        near = (1.5 * distance - 2.5) * distance.square() + 1
        far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        return left.long().unsqueeze(-1) + offset, torch.where(distance < 1, near, far)


def interpolate(
    index: Int[Tensor, "*sample batch feature 4"],
    weight: Float[Tensor, "*sample batch feature 4"],
    draws: Float[Tensor, "samples feature grid"],
) -> Float[Tensor, "samples batch feature"]:
    """Values w(z_j)ᵀ u_j of every draw at every example."""
    # (batch feature 4) or (sample batch feature 4) → (sample batch feature 4)
    index = index.expand(len(draws), *index.shape[-3:])
    values = draws.unsqueeze(1).expand(-1, index.shape[1], -1, -1).gather(-1, index)
    return (values * weight).sum(-1)
