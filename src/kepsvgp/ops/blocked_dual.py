"""Scores of the dual projection, some sequences at a time; see `kepsvgp.ops.blocked`.

For the tokens T of one side (queries or keys) of one head and sequence, its coefficients H, the
other side's T′ and H′, n real tokens, and gradients G of the scores S and D of the directions W:

    Φ = r ∘ T        W = Φ′ᵀ H′ / n        S = Φ W        r = (‖t‖² + ε)^(−½), zero at padding

    ∂W = Φᵀ G + D    ∂H = Φ ∂W′ / n        ∂Φ = G Wᵀ + H ∂W′ᵀ / n        ∂T = r ∘ (∂Φ − c ∘ Φ)

with c = Σ Φ ∘ ∂Φ along the features, which is Σ S ∘ G + H ∘ ∂H along the rank. Φ is
not formed: r is multiplied to what is as narrow as the rank.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kepsvgp.maths import ksvd
from kepsvgp.ops.blocked import differentiable_gradient, gradient_of_scores
from kepsvgp.ops.slices import blocks


class DualScores(torch.autograd.Function):
    """Sᵀ, Wᵀ and Σ S² from T and Hᵀ; axes as in `dispatch.project_dual`."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, h: Tensor, mask: Tensor | None, with_energy: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sᵀ, Wᵀ and, if asked for, Σ S²."""
        batch, pair, token, feature = t.shape
        rank = h.shape[2]
        scale = t.new_empty(batch, pair, 1, token)
        both = t.new_empty(batch, 2, pair // 2, rank, token)
        scores = both.flatten(1, 2)
        directions = t.new_zeros(batch, pair, rank, feature)
        energy = t.new_zeros(pair, rank) if with_energy else None
        share = _share(t, mask)
        for rows, _ in blocks(t):
            block = t[rows].contiguous()
            # r = (‖t‖² + ε)^(−½)
            r = torch.linalg.vector_norm(block, dim=-1).square_().add_(ksvd.EPSILON).rsqrt_()
            if mask is not None:
                r.mul_(mask[rows, None])
            r = scale[rows] = r.unsqueeze(-2)
            # W = (r ∘ T′)ᵀ H′ / n    S = r ∘ (T W)
            w = _other_side(_in_order(h[rows]).mul_(r) @ block).mul_(share[rows])
            s = torch.matmul(w, block.mT, out=scores[rows]).mul_(r)
            directions[rows] = w
            if energy is not None:
                energy += s.square().sum(dim=(0, 3))
        ctx.save_for_backward(t, h, scale, both, directions)
        ctx.mask = mask
        ctx.set_materialize_grads(False)
        return both, directions, energy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """∂T and ∂H."""
        t, h, scale, both, directions = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                w = ksvd.dual_directions(t, h, ctx.mask)
                again = ksvd.project(t, w, ctx.mask)
                return again.unflatten(1, (2, -1)), w.mT, ksvd.sum_of_squares(again)

            return (*differentiable_gradient(plain, (t, h), grads), None, None)
        grad, grad_directions, grad_energy = grads
        # they have the strides of T and H, so the maps that made those find them in order
        grad_t, grad_h = torch.empty_like(t), torch.empty_like(h)
        scores, share = both.flatten(1, 2), _share(t, ctx.mask)
        for rows, _ in blocks(t):
            r, s, w = scale[rows], scores[rows], directions[rows]
            # a copy always: it is changed below
            block = t[rows].clone(memory_format=torch.contiguous_format)
            # r ∘ G
            g = gradient_of_scores(None if grad is None else grad[rows], s, grad_energy).mul_(r)
            # ∂W = (r ∘ T)ᵀ G + D
            grad_w = g @ block
            if grad_directions is not None:
                grad_w += grad_directions[rows]
            grad_w = _other_side(grad_w).mul_(share[rows])
            # ∂H = r ∘ (T ∂W′) / n
            of_h = (grad_w @ block.mT).mul_(r)
            for grad_of_one, of_one in zip(grad_h[rows], of_h, strict=True):
                # matrices are transposed much faster than what has more axes
                grad_of_one.flatten(0, 1).mT.copy_(of_one.flatten(0, 1).mT)
            # r c = Σ S ∘ (r ∘ G) + (r ∘ H) ∘ ∂H
            scaled = _in_order(h[rows]).mul_(r)
            c = of_h.mul_(scaled).addcmul_(g, s).sum(dim=-2, keepdim=True).mul_(r)
            # ∂T = (r ∘ G) Wᵀ + (r ∘ H) ∂W′ᵀ / n − r² c ∘ T
            block.mul_(c.neg_().mT)
            flat = block.flatten(0, 1)
            flat.baddbmm_(g.mT.flatten(0, 1), w.flatten(0, 1))
            flat.baddbmm_(scaled.mT.flatten(0, 1), grad_w.flatten(0, 1))
            grad_t[rows] = block
        return grad_t, grad_h, None, None


def _in_order(t: Tensor) -> Tensor:
    """A copy whose last axis is the last in memory."""
    return t.clone(memory_format=torch.contiguous_format)


def _share(t: Tensor, mask: Tensor | None) -> Float[Tensor, "batch 1 1 1"]:
    """1 / n for each sequence."""
    if mask is None:
        return t.new_full((t.shape[0], 1, 1, 1), 1.0 / max(t.shape[2], 1))
    return mask.sum(dim=-1).clamp_min(1).to(t.dtype).reciprocal()[:, None, None, None]


def _other_side(t: Float[Tensor, "batch pair *rest"]) -> Float[Tensor, "batch pair *rest"]:
    """That of the keys where that of the queries stood, and the other way round."""
    return torch.cat(t.chunk(2, dim=1)[::-1], dim=1)
