"""Scores of the dual projection, some sequences at a time; see `kepsvgp.ops.blocked`.

For the tokens T of one side (queries or keys) of one head and sequence, its coefficients H, the
other side's T′ and H′, n real tokens, and gradients G of the scores S and D of the directions W:

    Φ = r ∘ T        W = Φ′ᵀ H′ / n        S = Φ W        r = (‖t‖² + ε)^(−½), zero at padding

    ∂W = Φᵀ G + D    ∂H = Φ ∂W′ / n        ∂Φ = G Wᵀ + H ∂W′ᵀ / n        ∂T = r ∘ (∂Φ − c ∘ Φ)

with c = Σ Φ ∘ ∂Φ along the features, which is Σ S ∘ G + H ∘ ∂H along the rank.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kepsvgp.maths import ksvd
from kepsvgp.ops.blocked import differentiable_gradient
from kepsvgp.ops.slices import blocks


class DualScores(torch.autograd.Function):
    """S, W and Σ S² from T and H; axes as in `dispatch.project_dual`, the rank last."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, h: Tensor, mask: Tensor | None, with_energy: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """S, W and, if asked for, Σ S²."""
        batch, pair, token, feature = t.shape
        rank = h.shape[-1]
        scale = t.new_empty(batch, pair, token, 1)
        scores = t.new_empty(batch, pair, token, rank)
        directions = t.new_zeros(batch, pair, rank, feature)
        energy = t.new_zeros(pair, rank) if with_energy else None
        share = _share(t, mask)
        for rows, _ in blocks(t):
            phi = t[rows].clone(memory_format=torch.contiguous_format)
            # r = (‖t‖² + ε)^(−½)
            r = torch.linalg.vector_norm(phi, dim=-1, keepdim=True)
            r = r.square_().add_(ksvd.EPSILON).rsqrt_()
            if mask is not None:
                r.mul_(mask[rows, None, :, None])
            scale[rows] = r
            phi.mul_(r)
            # W = Φ′ᵀ H′ / n    S = Φ W
            w = _other_side(h[rows].mT @ phi).mul_(share[rows])
            s = torch.matmul(phi, w.mT.contiguous(), out=scores[rows])
            directions[rows] = w
            if energy is not None:
                energy += s.square().sum(dim=(0, 2))
        ctx.save_for_backward(t, h, scale, scores, directions)
        ctx.mask = mask
        ctx.set_materialize_grads(False)
        return scores, directions.mT, energy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """∂T and ∂H."""
        t, h, scale, scores, directions = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                w = ksvd.dual_directions(t, h.mT, ctx.mask)
                again = ksvd.project(t, w, ctx.mask)
                return again.mT, w, ksvd.sum_of_squares(again)

            return (*differentiable_gradient(plain, (t, h), grads), None, None)
        grad, grad_directions, grad_energy = grads
        # they have the strides of T and H, so the maps that made those find them in order
        grad_t, grad_h = torch.empty_like(t), torch.empty_like(h)
        share = _share(t, ctx.mask)
        for rows, _ in blocks(t):
            r, s, w = scale[rows], scores[rows], directions[rows]
            phi = t[rows].clone(memory_format=torch.contiguous_format).mul_(r)
            # with ∂ Σ S² = 2 S
            g = torch.zeros_like(s) if grad is None else grad[rows]
            if grad_energy is not None:
                g = torch.addcmul(g, s, grad_energy.unsqueeze(1), value=2.0)
            # ∂W = Φᵀ G + D
            grad_w = g.mT @ phi
            if grad_directions is not None:
                grad_w += grad_directions[rows].mT
            grad_w = _other_side(grad_w).mul_(share[rows])
            # ∂H = Φ ∂W′ / n
            of_h = phi @ grad_w.mT.contiguous()
            grad_h[rows] = of_h
            # ∂Φ = G Wᵀ + H ∂W′ᵀ / n
            grad_phi = g @ w
            grad_phi.flatten(0, 1).baddbmm_(h[rows].flatten(0, 1), grad_w.flatten(0, 1))
            # ∂T = r ∘ (∂Φ − c ∘ Φ)
            c = of_h.mul_(h[rows]).addcmul_(g, s).sum(dim=-1, keepdim=True)
            torch.mul(grad_phi.addcmul_(phi, c, value=-1.0), r, out=grad_t[rows])
        return grad_t, grad_h, None, None


def _share(t: Tensor, mask: Tensor | None) -> Float[Tensor, "batch 1 1 1"]:
    """1 / n for each sequence."""
    if mask is None:
        return t.new_full((t.shape[0], 1, 1, 1), 1.0 / max(t.shape[2], 1))
    return mask.sum(dim=-1).clamp_min(1).to(t.dtype).reciprocal()[:, None, None, None]


def _other_side(t: Float[Tensor, "batch pair *rest"]) -> Float[Tensor, "batch pair *rest"]:
    """That of the keys where that of the queries stood, and the other way round."""
    return torch.cat(t.chunk(2, dim=1)[::-1], dim=1)
