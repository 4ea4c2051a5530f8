"""Attention kernels of trained layers, their spectra, and how close learnt scores come to them.

    K = Φ_q Φ_kᵀ (KEP, Primal),   softmax(Q Kᵀ / √d) (softmax),   k(q, q) (SGPA)

for every example and head. At the solution of KSVD the columns of the scores E and R are the
left and right singular vectors of K, up to their lengths, in the order of the singular values.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.attention.sgpa import SGPAttention, kernel_matrix
from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.maths import ksvd

KINDS: dict[type[nn.Module], str] = {
    SoftmaxAttention: "softmax",
    KEPAttention: "kep",
    PrimalAttention: "primal",
    SGPAttention: "sgpa",
}


def kind_of(module: nn.Module) -> str | None:
    """What a layer is called in inspections; None of one that is not looked into."""
    return next((kind for known, kind in KINDS.items() if isinstance(module, known)), None)


def layer_svd(
    layer: nn.Module,
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None = None,
) -> ksvd.SVD:
    """All singular triplets of a layer's kernel for each example and head, in float64.

    Padding has zero rows and columns, so it adds nothing but singular values of zero.
    """
    if isinstance(layer, KEPAttention | PrimalAttention):
        return factored_svd(*layer_features(layer, x, mask))
    if isinstance(layer, SoftmaxAttention):
        q, k, _ = _split(layer.to_qkv(x), 3 * layer.num_heads).double().chunk(3, dim=1)
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], -torch.inf)
        kernel = logits.softmax(dim=-1)
    elif isinstance(layer, SGPAttention):
        queries, _ = _split(layer.to_qv(x), 2 * layer.num_heads).double().chunk(2, dim=1)
        scales = layer.log_scale.double(), layer.log_lengthscale.double()
        kernel = kernel_matrix(queries, queries, *scales, kernel=layer.kernel)
    else:
        raise TypeError(f"no attention kernel is known for {type(layer).__name__}")
    if mask is not None:
        # a row of padding alone has no softmax
        kernel = kernel.nan_to_num(0.0) * (mask[:, None, :, None] & mask[:, None, None, :])
    return ksvd.exact_svd(kernel, kernel.shape[-1])


class Features(NamedTuple):
    """Φ_q and Φ_k of a layer, zero at padding."""

    q: Float[Tensor, "batch head token feature"]
    k: Float[Tensor, "batch head token feature"]


def layer_features(
    layer: KEPAttention | PrimalAttention,
    x: Float[Tensor, "batch token dim"],
    mask: Bool[Tensor, "batch token"] | None = None,
) -> Features:
    """The features whose product is the layer's kernel, in float64."""
    both = ksvd.features(_split(layer.to_qk(x), 2 * layer.num_heads).double())
    if mask is not None:
        both = both * mask[:, None, :, None]
    return Features(*both.chunk(2, dim=1))


def random_scores(
    phi: Float[Tensor, "batch head token feature"], rank: int, *, seed: int = 0
) -> Float[Tensor, "batch head rank token"]:
    """Scores along random directions: what any direction would give, without learning."""
    generator = torch.Generator().manual_seed(seed)
    shape = (phi.shape[1], phi.shape[-1], rank)
    directions = torch.randn(shape, generator=generator, dtype=phi.dtype).to(phi.device)
    return (phi @ directions).mT


def factored_svd(
    phi_q: Float[Tensor, "*batch token feature"], phi_k: Float[Tensor, "*batch token feature"]
) -> ksvd.SVD:
    """Singular triplets of Φ_q Φ_kᵀ without the N × N matrix: its rank is at most the width."""
    # Φ_q = Q₁ R₁, Φ_k = Q₂ R₂:  K = Q₁ (R₁ R₂ᵀ) Q₂ᵀ
    q1, r1 = torch.linalg.qr(phi_q)
    q2, r2 = torch.linalg.qr(phi_k)
    left, values, right_t = torch.linalg.svd(r1 @ r2.mT)
    return ksvd.SVD(q1 @ left, values, q2 @ right_t.mT)


def normalised_spectrum(
    values: Float[Tensor, "*batch rank"],
) -> Float[Tensor, " rank"]:
    """Singular values, each kernel's divided by their sum, averaged over kernels."""
    flat = values.flatten(end_dim=-2)
    total = flat.sum(dim=-1, keepdim=True)
    is_there = total[:, 0] > 0
    return (flat[is_there] / total[is_there]).mean(dim=0)


class Agreement(NamedTuple):
    """How close learnt directions come to the exact ones of one side, left or right.

    `alignment` compares vector by vector, in falling order of the scores' energy and of the
    singular values; `principal` has the cosines of the principal angles between the two
    subspaces, which do not mind a rotation within them, and `overlap` the mean of their squares.
    1 is the same, and means are over examples and heads.
    """

    alignment: Float[Tensor, " rank"]
    principal: Float[Tensor, " rank"]
    overlap: Float[Tensor, ""]


def agreement(
    scores: Float[Tensor, "*batch rank token"], exact: Float[Tensor, "*batch token rank"]
) -> Agreement:
    """Learnt scores (tokens last) against exact singular vectors, in float64."""
    columns = scores.double().mT
    order = columns.square().sum(dim=-2).argsort(dim=-1, descending=True)
    columns = columns.gather(-1, order.unsqueeze(-2).expand_as(columns))
    norms = columns.norm(dim=-2, keepdim=True)
    unit = columns / norms.clamp_min(torch.finfo(norms.dtype).tiny)
    one_to_one = (unit * exact).sum(dim=-2).abs()
    # an orthonormal basis of the scores' span; directions that it lacks have no cosine
    basis, values, _ = torch.linalg.svd(columns, full_matrices=False)
    top = values[..., :1].clamp_min(torch.finfo(values.dtype).tiny)
    basis = basis * (values > 1e-10 * top).unsqueeze(-2)
    cosines = torch.linalg.svdvals(basis.mT @ exact).clamp(max=1.0)
    return Agreement(_mean(one_to_one), _mean(cosines), cosines.square().mean())


def _mean(values: Float[Tensor, "*batch rank"]) -> Float[Tensor, " rank"]:
    return values.reshape(-1, values.shape[-1]).mean(dim=0)


def _split(t: Float[Tensor, "batch token width"], parts: int) -> Tensor:
    """(batch token part·feature) → (batch part token feature)."""
    return t.unflatten(-1, (parts, -1)).transpose(1, 2)
