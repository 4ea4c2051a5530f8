"""The end of a network: means over tokens, and those of many samples that are never formed.

Samples y_s = x + M A_s of the tokens have the same scores M. With a tilde for what is left of a
vector when the mean of its d entries is taken away, and with the parameters of norm and MLP,

    W₁ LN(y_s) + b₁ = ρ_s ∘ (ỹ_s Wᵀ) + c      W = W₁ diag(γ)      c = W₁ β + b₁
    ỹ_s = x̃ + M Ã_s                           ρ_s = (‖ỹ_s‖² / d + ε)^(−½)
    ỹ_s Wᵀ = x̃ Wᵀ + M (Ã_s Wᵀ)

so that a sample needs two products with M, which is narrower than the tokens, and none with W.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.ops.dispatch import is_eager
from kepsvgp.ops.private import is_untouched
from kepsvgp.ops.sampled import Factors
from kepsvgp.ops.slices import slices

# All samples of a slice. On a CPU what the allocator hands out again instead of asking the system,
# and enough for threads to share the work; elsewhere enough to keep a large device busy.
SLICE_BYTES = 6 * 2**20
SLICE_BYTES_ELSEWHERE = 2**28


def slice_bytes(t: Tensor) -> int:
    """How large a slice may be on the device of a tensor."""
    return SLICE_BYTES if t.is_cpu else SLICE_BYTES_ELSEWHERE


def mean_pool(
    x: Float[Tensor, "*sample batch token dim"], mask: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "*sample batch dim"]:
    """Mean over the real tokens; zero for a sequence that has none."""
    if mask is None:
        return x.mean(dim=-2)
    return (_weights(x, mask).unsqueeze(-2) @ x).squeeze(-2)


def can_pool_samples(x: Tensor, norm: nn.Module, mlp: nn.Sequential) -> bool:
    """Whether `pool_samples` serves these: no gradients, and modules as `models.blocks` makes them.

    It reads the parameters of the modules and calls none but the last map.
    """
    to_hidden, activation, *_ = mlp
    return (
        not torch.is_grad_enabled()
        and x.ndim == 3
        and is_eager(x)
        and all(
            map(is_untouched, (norm, to_hidden, activation), (nn.LayerNorm, nn.Linear, nn.GELU))
        )
        and norm.bias is not None
        and activation.approximate == "none"
    )


def pool_samples(
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None,
    factors: Factors,
    norm: nn.LayerNorm,
    mlp: nn.Sequential,
) -> Float[Tensor, "sample batch dim"]:
    """`mean_pool` of y_s + MLP(LN(y_s)) for samples y_s = x + M A_s + b."""
    to_hidden, _, _, to_output, _ = mlp
    assert isinstance(to_hidden, nn.Linear)
    x = x + factors.bias
    hidden = pool_hidden(x, _weights(x, mask), factors.scores, factors.maps, norm, to_hidden)
    # the mean of x + M A_s + b
    tokens = mean_pool(x, mask) + mean_pool(factors.scores, mask) @ factors.maps
    return tokens + to_output(hidden)


def pool_hidden(
    x: Float[Tensor, "batch token dim"],
    weights: Float[Tensor, "batch token"],
    scores: Float[Tensor, "batch token inner"],
    maps: Float[Tensor, "sample inner dim"],
    norm: nn.LayerNorm,
    to_hidden: nn.Linear,
) -> Float[Tensor, "sample batch hidden"]:
    """Σ_n w_n gelu(W₁ LN(y_sn) + b₁) with y_s = x + M A_s, sums over the tokens of a sequence."""
    batch, token, dim = x.shape
    # W = W₁ diag(γ)    c = W₁ β + b₁
    weight = to_hidden.weight * norm.weight
    offset = nn.functional.linear(norm.bias, to_hidden.weight, to_hidden.bias)
    # x̃ and x̃ Wᵀ    Ã_s and Ã_s Wᵀ
    x, maps = _centred(x), _centred(maps)
    x_hidden, maps_hidden = x @ weight.mT, maps @ weight.mT
    num_samples, hidden_dim = maps_hidden.shape[0], maps_hidden.shape[2]
    pooled = x.new_zeros(num_samples, batch, hidden_dim)
    per_token = num_samples * max(dim, hidden_dim) * x.element_size()
    for rows, tokens in slices(batch, token, slice_bytes(x) // per_token):
        m = scores[rows, tokens].flatten(0, 1).expand(num_samples, -1, -1)
        # ỹ_s = x̃ + M Ã_s    ρ_s = (‖ỹ_s‖² / d + ε)^(−½)
        scale = _inverse_spread(torch.baddbmm(x[rows, tokens].flatten(0, 1), m, maps), norm.eps)
        # gelu(ρ_s ∘ (x̃ Wᵀ + M (Ã_s Wᵀ)) + c)
        y = torch.baddbmm(x_hidden[rows, tokens].flatten(0, 1), m, maps_hidden)
        hidden = torch.ops.aten.gelu_(torch.addcmul(offset, y, scale, out=y))
        w = weights[rows, tokens].unsqueeze(-2)
        pooled[:, rows] += (w @ hidden.unflatten(1, (w.shape[0], -1))).squeeze(-2)
    return pooled


def _weights(
    x: Float[Tensor, "*sample batch token dim"], mask: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "batch token"]:
    """What each token counts in the mean over the real ones, mₙ / Σₙ mₙ."""
    if mask is None:
        return x.new_ones(x.shape[-3:-1]) / x.shape[-2]
    weights = mask.to(x.dtype)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)


def _inverse_spread(t: Float[Tensor, "*shape dim"], eps: float) -> Float[Tensor, "*shape 1"]:
    norm = torch.linalg.vector_norm(t, dim=-1, keepdim=True)
    return norm.square_().div_(t.shape[-1]).add_(eps).rsqrt_()


def _centred(t: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    return t - t.mean(dim=-1, keepdim=True)
