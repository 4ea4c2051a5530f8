"""Kernel SVD of the asymmetric attention kernel, in the primal.

With feature maps φ_q, φ_k of the queries and keys the attention kernel of one head is
K = Φ_q Φ_kᵀ. Its leading singular pairs enter through projection scores

    E = Φ_q W_e        R = Φ_k W_r                         (N × s)

and the KSVD of the paper (eq. 11) asks W_e, W_r, Λ for a zero of

    J = ½ Σ eᵀ Λ⁻¹ e + ½ Σ rᵀ Λ⁻¹ r − Tr(W_eᵀ W_r).

K itself is formed only by `attention_kernel`, which serves tests and inspection. Scores are
given with the tokens last, `batch head rank token`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Added to squared norms, not a bound on them: the gradient at 0 is then 0 and not NaN.
EPSILON = 1e-24
# The largest float16 is 65504: 1 / ‖0‖ must stay below it, with room for gradients.
EPSILON_FLOAT16 = 2.0**-26
# kinds of devices that compute in single precision at most
WITHOUT_FLOAT64 = ("mps",)


def inverse_norm(t: Float[Tensor, "*shape feature"]) -> Float[Tensor, "*shape"]:
    """1 / ‖t‖ over the last axis, at least in float32; 0 is mapped to a finite number."""
    epsilon = EPSILON_FLOAT16 if t.dtype == torch.float16 else EPSILON
    return (at_least_float32(t).square().sum(dim=-1) + epsilon).rsqrt()


def at_least_float32(t: Tensor) -> Tensor:
    """`t` itself, or its float32 copy where it is of a narrower type."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def in_float64(t: Tensor) -> Tensor:
    """`t` in double precision, on a CPU where its own device has none."""
    return (t.cpu() if t.device.type in WITHOUT_FLOAT64 else t).double()


def features(t: Float[Tensor, "*shape feature"]) -> Float[Tensor, "*shape feature"]:
    """φ(t) = t / ‖t‖, formed explicitly: κ(q, k) = qᵀk / (‖q‖ ‖k‖) is the cosine."""
    return t * inverse_norm(t).unsqueeze(-1)


def landmark_positions(
    num_real: Int[Tensor, " batch"], num_landmarks: int
) -> Int[Tensor, "batch landmark"]:
    """Ranks of the landmarks among the real tokens: ⌊m (n − 1) / (M − 1)⌋, evenly spaced."""
    steps = torch.arange(num_landmarks, device=num_real.device)
    last = (num_real - 1).clamp_min(0).unsqueeze(-1)
    return steps * last // max(num_landmarks - 1, 1)


class Place(NamedTuple):
    """Where the tokens at hand stand in sequences of which they are a part."""

    before: Int[Tensor, " batch"]
    """Real tokens of the sequence that come before those at hand."""
    total: Int[Tensor, " batch"]
    """Real tokens of the whole sequence."""


def landmarks(
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None,
    num_landmarks: int,
    place: Place | None = None,
) -> Float[Tensor, "batch landmark dim"]:
    """Evenly spaced tokens of each sequence; with a mask, spaced over its real tokens.

    Landmarks that are not at hand are zero: those of a sequence without any real token, and,
    where the tokens are a part of a longer sequence, those that stand elsewhere in it.
    """
    batch, num_tokens, dim = x.shape
    if num_tokens == 0:
        return x.new_zeros(batch, num_landmarks, dim)
    if mask is None and place is None:
        full = torch.full((1,), num_tokens, device=x.device)
        return x.index_select(1, landmark_positions(full, num_landmarks)[0])
    if mask is None:
        mask = torch.ones(batch, num_tokens, dtype=torch.bool, device=x.device)
    num_real = mask.sum(dim=-1)
    before, total = (torch.zeros_like(num_real), num_real) if place is None else place
    rank = landmark_positions(total, num_landmarks) - before.unsqueeze(-1)
    is_here = (rank >= 0) & (rank < num_real.unsqueeze(-1))
    # the real tokens first, in their order
    # (by distinct numbers: ONNX has no stable sort)
    order = (torch.arange(num_tokens, device=x.device) + 2**32 * ~mask).argsort(dim=-1)
    index = order.gather(1, rank.clamp(0, num_tokens - 1))
    picked = x.gather(1, index.unsqueeze(-1).expand(batch, num_landmarks, dim))
    return picked.masked_fill(~is_here.unsqueeze(-1), 0.0)


def landmark_directions(
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None,
    w_e: Float[Tensor, "head landmark rank"],
    w_r: Float[Tensor, "head landmark rank"],
    place: Place | None = None,
) -> Float[Tensor, "batch pair feature rank"]:
    """W_{·|X} = X_Mᵀ W, with X_M the head's slice of the landmark tokens.

    The directions of both sides, those of all heads for E and then those of all heads for R.
    Where the tokens are a part of a longer sequence, the part of the sum that they make.
    """
    num_heads, num_landmarks, rank = w_e.shape
    weight = torch.cat([w_e, w_r], dim=-1)
    if mask is None and place is None and num_landmarks >= x.shape[1] > 0:
        # every token is a landmark, some of them twice: add up its weights, do not copy it
        full = torch.full((1,), x.shape[1], device=x.device)
        index = landmark_positions(full, num_landmarks)[0]
        weight = weight.new_zeros(num_heads, x.shape[1], 2 * rank).index_add(1, index, weight)
        tokens = x
    else:
        tokens = landmarks(x, mask, num_landmarks, place)
    by_head = torch.einsum("b m h f -> h m b f", tokens.unflatten(-1, (num_heads, -1)))
    # one product for each head: (2s × M)(M × batch·f)
    product = weight.mT @ by_head.flatten(2)
    parts = product.unflatten(-1, (x.shape[0], -1)).unflatten(1, (2, rank))
    return torch.einsum("h p s b f -> b p h s f", parts).flatten(1, 2).mT


def project(
    t: Float[Tensor, "batch head token feature"],
    directions: Float[Tensor, "*batch head feature rank"],
    mask: Bool[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "batch head rank token"]:
    """Projection scores (φ(t) W)ᵀ; zero at padding.

    The s-wide product is scaled by 1 / ‖t‖ and not the wider t, so that φ(t) is never stored.
    """
    scale = inverse_norm(t)
    if mask is not None:
        scale = scale * mask.unsqueeze(1)
    scores = t @ directions
    return (scores * scale.unsqueeze(-1).to(scores.dtype)).mT


def dual_directions(
    qk: Float[Tensor, "batch pair token feature"],
    dual: Float[Tensor, "batch pair rank token"],
    mask: Bool[Tensor, "batch token"] | None = None,
    place: Place | None = None,
) -> Float[Tensor, "batch pair feature rank"]:
    """W_e = Φ_kᵀ H_r / n and W_r = Φ_qᵀ H_e / n, the stationarity conditions of KSVD.

    Divided by the number n of real tokens, the kernel does not grow with the length of the
    sequence. Queries of all heads come before keys, H_e before H_r, and W_e before W_r. Where the
    tokens are a part of a longer sequence, the part of the sum that they make.
    """
    real = None if mask is None else mask.sum(dim=-1)
    n = real if place is None else place.total

    def of_one(t: Tensor, coefficients: Tensor) -> Tensor:
        scale = inverse_norm(t)
        if mask is not None:
            scale = scale * mask.unsqueeze(1)
        scale = scale / (t.shape[-2] if n is None else n.clamp_min(1).to(scale)[:, None, None])
        weighted = coefficients * scale.unsqueeze(-2).to(coefficients.dtype)
        return (weighted @ t).mT

    (q, k), (h_e, h_r) = qk.chunk(2, dim=1), dual.chunk(2, dim=1)
    return torch.cat([of_one(k, h_r), of_one(q, h_e)], dim=1)


def sum_of_squares(scores: Float[Tensor, "batch head rank token"]) -> Float[Tensor, "head rank"]:
    """Σ s² over sequences and tokens, at least in float32."""
    return at_least_float32(scores).square().sum(dim=(0, -1))


def objective(
    energy: Float[Tensor, "head rank"],
    num_tokens: Float[Tensor, ""],
    log_lambda: Float[Tensor, "head rank"],
    trace: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """J = ½ mean Σ_s e²/λ + ½ mean Σ_s r²/λ − Tr(W_eᵀ W_r), means over tokens and heads.

    `energy` is Σ (e² + r²) over `num_tokens` real tokens, and `trace` the mean over heads (and
    over tokens, where sequences have directions of their own) of Tr(W_eᵀ W_r). Zero at the KSVD
    solution; the penalty is its square.
    """
    num_heads = log_lambda.shape[0]
    weighted = (energy * torch.exp(-at_least_float32(log_lambda))).sum()
    return 0.5 * weighted / (num_tokens.clamp_min(1) * num_heads) - trace


def relative_objective(
    energy: Float[Tensor, "head rank"],
    num_tokens: Float[Tensor, ""],
    log_lambda: Float[Tensor, "head rank"],
    trace: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """J̃ = J / (½ mean Σ_s (e² + r²)/λ) = 1 − Tr(W_eᵀ W_r) / (½ mean Σ_s (e² + r²)/λ).

    J grows with the square of a common factor of the coefficients, so that J² shrinks what it
    should rotate. J̃ has the same zeros but for E = R = 0, and does not depend on that factor.
    Where the inputs leave next to no scores it is at most a million, and not infinite.
    """
    j = objective(energy, num_tokens, log_lambda, trace)
    floor = (1e-6 * trace.detach().abs()).clamp_min(torch.finfo(j.dtype).tiny)
    return j / torch.maximum(j + trace, floor)


def mean_trace(
    w_e: Float[Tensor, "*batch head k rank"], w_r: Float[Tensor, "*batch head k rank"]
) -> Float[Tensor, "*batch"]:
    """Tr(W_eᵀ W_r), averaged over heads."""
    w_e, w_r = at_least_float32(w_e), at_least_float32(w_r)
    return (w_e * w_r).sum(dim=(-2, -1)).mean(dim=-1)


def residual_sums(
    scores: Float[Tensor, "batch head rank token"],
    coefficients: Float[Tensor, "batch head rank token"],
    log_lambda: Float[Tensor, "head rank"],
) -> Float[Tensor, "head rank"]:
    """Σ (s − λ h)² over a batch: how far K H_r = H_e Λ, or its adjoint, is from holding.

    Zero only where the coefficients are singular vectors, which J² does not ensure.
    """
    target = coefficients * torch.exp(at_least_float32(log_lambda)).unsqueeze(-1)
    return sum_of_squares(at_least_float32(scores) - target)


def orthonormal_columns(num_heads: int, rows: int, columns: int) -> Float[Tensor, "head k rank"]:
    """A matrix per head with orthonormal columns (rows, where there are fewer rows)."""
    weight = torch.empty(num_heads, rows, columns)
    for head in weight:
        torch.nn.init.orthogonal_(head)
    return weight


def attention_kernel(
    q: Float[Tensor, "*batch token feature"], k: Float[Tensor, "*batch token feature"]
) -> Float[Tensor, "*batch token token"]:
    """K = Φ_q Φ_kᵀ, formed explicitly. For small numbers of tokens."""
    return features(q) @ features(k).mT


class SVD(NamedTuple):
    """The leading singular triplets of a kernel: K H_r = H_e Λ and Kᵀ H_e = H_r Λ."""

    left: Float[Tensor, "*batch token rank"]
    values: Float[Tensor, "*batch rank"]
    right: Float[Tensor, "*batch token rank"]


def exact_svd(kernel: Float[Tensor, "*batch token token"], rank: int) -> SVD:
    """H_e, Λ and H_r of a small kernel (eq. 13)."""
    left, values, right_t = torch.linalg.svd(kernel, full_matrices=False)
    return SVD(left[..., :rank], values[..., :rank], right_t.mT[..., :rank])
