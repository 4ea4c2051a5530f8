"""What follows a draw: MLPs of many samples, and means over tokens of samples never formed.

Samples y_s = x + M A_s of the tokens have the same scores M. With a tilde for what is left of a
vector when the mean of its d entries is taken away, and with the parameters of norm and MLP,

    W₁ LN(y_s) + b₁ = ρ_s ∘ (ỹ_s Wᵀ) + c      W = W₁ diag(γ)      c = W₁ β + b₁
    ỹ_s = x̃ + M Ã_s                           ρ_s = (‖ỹ_s‖² / d + ε)^(−½)
    ỹ_s Wᵀ = x̃ Wᵀ + M (Ã_s Wᵀ)

so that a sample needs two products with M, which is narrower than the tokens, and none with W. The
first is made head by head, as A_s is zero elsewhere, with the mean μ = M ā_s of each token in Ã_s.
"""

from typing import NamedTuple

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


def can_take_in_samples(x: Tensor, norm: nn.Module, mlp: nn.Sequential) -> bool:
    """Whether `pool_samples` and `form_samples` serve: no gradients, modules as in `models.blocks`.

    They read the parameters of the modules and call none but the last map.
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
    hidden = pool_hidden(x, _weights(x, mask), factors, norm, to_hidden)
    # the mean of x + M A_s + b
    tokens = mean_pool(x, mask) + mean_pool(factors.scores, mask) @ factors.maps
    return tokens + to_output(hidden)


def pool_hidden(
    x: Float[Tensor, "batch token dim"],
    weights: Float[Tensor, "batch token"],
    factors: Factors,
    norm: nn.LayerNorm,
    to_hidden: nn.Linear,
) -> Float[Tensor, "sample batch hidden"]:
    """Σ_n w_n gelu(W₁ LN(y_sn) + b₁) with y_s = x + M A_s, sums over the tokens of a sequence."""
    batch, token, dim = x.shape
    of_x = _fold(x, norm, to_hidden)
    maps = _fold(factors.maps, norm, to_hidden).hidden
    num_samples, _, hidden_dim = maps.shape
    pooled = x.new_zeros(num_samples, batch, hidden_dim)
    per_token = num_samples * max(dim, hidden_dim) * x.element_size()
    for rows, tokens in slices(batch, token, slice_bytes(x) // per_token):
        part = _Folded(*(t[rows, tokens].flatten(0, 1) for t in of_x))
        own = factors._replace(scores=factors.scores[rows, tokens])
        _, hidden = _with_hidden(part, own, maps, norm, to_hidden)
        w = weights[rows, tokens].unsqueeze(-2)
        pooled[:, rows] += (w @ hidden.unflatten(1, (w.shape[0], -1))).squeeze(-2)
    return pooled


def form_samples(
    x: Float[Tensor, "batch token dim"], factors: Factors, norm: nn.LayerNorm, mlp: nn.Sequential
) -> Float[Tensor, "sample batch token dim"]:
    """y_s + MLP(LN(y_s)) for samples y_s = x + M A_s + b."""
    to_hidden, _, _, to_output, _ = mlp
    assert isinstance(to_hidden, nn.Linear)
    assert isinstance(to_output, nn.Linear)
    x = x + factors.bias
    part = _Folded(*(t.flatten(0, 1) for t in _fold(x, norm, to_hidden)))
    maps = _fold(factors.maps, norm, to_hidden).hidden
    y, hidden = _with_hidden(part, factors, maps, norm, to_hidden)
    # the mean that was taken away, of x and of M A_s
    mean = x.mean(dim=-1, keepdim=True) + factors.scores @ factors.maps.mean(dim=-1).mT
    y += mean.flatten(0, 1).mT.unsqueeze(-1)
    y.flatten(0, 1).addmm_(hidden.flatten(0, 1), to_output.weight.mT)
    return y.add_(to_output.bias).unflatten(1, x.shape[:2])


class _Folded(NamedTuple):
    """t̃ and t̃ Wᵀ with W = W₁ diag(γ)."""

    centred: Float[Tensor, "*shape dim"]
    hidden: Float[Tensor, "*shape hidden"]


def _fold(t: Float[Tensor, "*shape dim"], norm: nn.LayerNorm, to_hidden: nn.Linear) -> _Folded:
    centred = t - t.mean(dim=-1, keepdim=True)
    return _Folded(centred, centred @ (to_hidden.weight * norm.weight).mT)


def _with_hidden(
    x: _Folded,
    factors: Factors,
    maps: Float[Tensor, "sample inner hidden"],
    norm: nn.LayerNorm,
    to_hidden: nn.Linear,
) -> tuple[Float[Tensor, "sample token dim"], Float[Tensor, "sample token hidden"]]:
    """ỹ_s and gelu(W₁ LN(y_s) + b₁), with `maps` Ã_s Wᵀ."""
    # c = W₁ β + b₁
    offset = nn.functional.linear(norm.bias, to_hidden.weight, to_hidden.bias)
    m, num_heads = factors.scores.flatten(0, 1), factors.of_heads.shape[1]
    # ỹ_s = x̃ − μ_s + M A_s    ρ_s = (‖ỹ_s‖² / d + ε)^(−½)
    centred = x.centred - (factors.maps.mean(dim=-1) @ m.mT).unsqueeze(-1)
    of_heads = (t.unflatten(-1, (num_heads, -1)).unbind(-2) for t in (centred, m))
    for y, own, a in zip(*of_heads, factors.of_heads.unbind(1), strict=True):
        y.baddbmm_(own.expand(len(a), -1, -1), a)
    scale = _inverse_spread(centred, norm.eps)
    # gelu(ρ_s ∘ (x̃ Wᵀ + M (Ã_s Wᵀ)) + c)
    hidden = torch.baddbmm(x.hidden, m.expand(len(maps), -1, -1), maps)
    return centred, torch.ops.aten.gelu_(torch.addcmul(offset, hidden, scale, out=hidden))


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
