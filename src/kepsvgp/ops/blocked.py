"""The two steps of a layer that touch whole queries, keys and outputs, in blocks of tokens.

For the tokens T of one head and sequence, directions W and a gradient G of the scores S:

    S = r ∘ (T W)      r = (‖t‖² + ε)^(−½), one for each token, zero at padding
    ∂W = Tᵀ (r ∘ G)    ∂T = (r ∘ G) Wᵀ − c ∘ T      c = r² Σ_s G ∘ S

and for merged scores M, a map A to the head's width and a bias b

    O = M A + b        ∂M = G Aᵀ     ∂A = Mᵀ G      ∂b = Σ G

Left to automatic differentiation, a dozen tensors as large as the queries and keys are written.
Here nothing as large as T is made but its gradient. Scores are kept with the tokens last: a product
whose rows are as short as the rank takes two to three times as long.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kepsvgp.maths import ksvd, svgp
from kepsvgp.ops.slices import blocks


class Scores(torch.autograd.Function):
    """Sᵀ, and Σ S², from T and W; axes as in `dispatch.project`."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, directions: Tensor, mask: Tensor | None, with_energy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Sᵀ and, if asked for, Σ S²."""
        batch, head, token, _ = t.shape
        scale = t.new_empty(batch, head, 1, token)
        both = t.new_empty(batch, 2, head // 2, directions.shape[-1], token)
        scores = both.flatten(1, 2)
        energy = t.new_zeros(t.shape[1], directions.shape[-1]) if with_energy else None
        for rows, tokens in blocks(t):
            block = t[rows, :, tokens].contiguous()
            # r = (‖t‖² + ε)^(−½)
            r = torch.linalg.vector_norm(block, dim=-1).square_().add_(ksvd.EPSILON).rsqrt_()
            if mask is not None:
                r.mul_(mask[rows, None, tokens])
            scale[rows, :, 0, tokens] = r
            # S = r ∘ (T W)
            s = (directions[rows].mT @ block.mT).mul_(r.unsqueeze(-2))
            scores[rows, ..., tokens] = s
            if energy is not None:
                energy += s.square_().sum(dim=(0, 3))
        ctx.save_for_backward(t, directions, scale, both)
        ctx.mask = mask
        ctx.set_materialize_grads(False)
        return both, energy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """∂T and ∂W."""
        t, directions, scale, both = ctx.saved_tensors
        grad, grad_energy = grads
        if grad is None and grad_energy is None:
            return None, None, None, None
        if torch.is_grad_enabled():

            def plain(t: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
                again = ksvd.project(t, directions, ctx.mask)
                return again.unflatten(1, (2, -1)), ksvd.sum_of_squares(again)

            return (*differentiable_gradient(plain, (t, directions), grads), None, None)
        # it has the strides of T, so the map that made T finds its gradient in order
        grad_t, scores = torch.empty_like(t), both.flatten(1, 2)
        grad_directions = torch.zeros_like(directions.mT).mT
        for rows, tokens in blocks(t):
            # a copy always: it is changed below
            block = t[rows, :, tokens].clone(memory_format=torch.contiguous_format)
            r, s, w = scale[rows, ..., tokens], scores[rows, ..., tokens], directions[rows]
            g = gradient_of_scores(
                None if grad is None else grad[rows, ..., tokens], s, grad_energy
            )
            # r ∘ G    c = r² Σ_s G ∘ S
            scaled = g.mul_(r)
            c = (scaled * s).sum(dim=-2, keepdim=True).mul_(r)
            # ∂W = Tᵀ (r ∘ G)
            grad_directions[rows] += (scaled @ block).mT
            # ∂T = (r ∘ G) Wᵀ − c ∘ T
            block.mul_(c.neg_().mT)
            block.flatten(0, 1).baddbmm_(scaled.mT.flatten(0, 1), w.mT.flatten(0, 1))
            grad_t[rows, :, tokens] = block
        return grad_t, grad_directions, None, None


class ReadOut(torch.autograd.Function):
    """O from M, A and b; axes as in `svgp.read_out`."""

    @staticmethod
    def forward(ctx: Any, merged: Tensor, readout: Tensor, bias: Tensor) -> Tensor:
        """O = M A + b."""
        batch, head, token, _ = merged.shape
        out = merged.new_empty(batch, token, head, readout.shape[-1])
        for rows, tokens in blocks(out.transpose(1, 2)):
            product = merged[rows, :, tokens] @ readout[rows]
            torch.add(product, _of_tokens(bias, tokens), out=out[rows, tokens].transpose(1, 2))
        ctx.save_for_backward(merged, readout, bias)
        return out.flatten(2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """∂M, ∂A and ∂b."""
        merged, readout, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradient(svgp.read_out, (merged, readout, bias), grads)
        grad = grads[0].unflatten(-1, (merged.shape[1], -1)).transpose(1, 2)
        grad_merged = torch.empty_like(merged)
        grad_readout = torch.zeros_like(readout)
        grad_bias = torch.zeros_like(bias)
        for rows, tokens in blocks(grad):
            g = grad[rows, :, tokens].contiguous()
            # ∂M = G Aᵀ    ∂A = Mᵀ G    ∂b = Σ G
            grad_merged[rows, :, tokens] = (readout[rows] @ g.mT).mT
            grad_readout[rows] += merged[rows, :, tokens].mT @ g
            summed = g.sum(dim=(0, 1))
            if bias.ndim == 1:
                grad_bias += summed.sum(dim=0)
            else:
                grad_bias[tokens] += summed
        return grad_merged, grad_readout, grad_bias


def _of_tokens(bias: Float[Tensor, "*token width"], tokens: slice) -> Tensor:
    return bias if bias.ndim == 1 else bias[tokens]


def gradient_of_scores(
    grad: Float[Tensor, "batch 2 head rank token"] | None,
    scores: Float[Tensor, "batch pair rank token"],
    grad_energy: Float[Tensor, "pair rank"] | None,
) -> Float[Tensor, "batch pair rank token"]:
    """The gradient of the scores with that of their energy, ∂ Σ S² = 2 S: a new tensor."""
    zero = grad_energy is None
    found = torch.zeros_like(scores) if zero else scores * (2.0 * grad_energy.unsqueeze(-1))
    if grad is not None:
        # that of a sum of both branches is one for both, and need not be copied
        found.unflatten(1, (2, -1)).add_(grad)
    return found


def differentiable_gradient(
    plain: Callable[..., Any], inputs: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The gradient as a graph of its own, for whoever differentiates twice."""
    outputs = plain(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(out, g) for out, g in zip(outputs, grads, strict=True) if g is not None]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(
        torch.autograd.grad(
            [out for out, _ in pairs], wanted, [g for _, g in pairs], create_graph=True
        )
    )
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
