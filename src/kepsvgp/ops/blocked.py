"""The two steps of the layer that touch whole queries, keys and outputs, in blocks of tokens.

For the tokens T of one head and sequence, directions W and a gradient G of the scores S:

    S = r ∘ (T W)      r = (‖t‖² + ε)^(−½), one for each token, zero at padding
    ∂W = Tᵀ (r ∘ G)    ∂T = (r ∘ G) Wᵀ − c ∘ T      c = r² Σ_s G ∘ S

and for merged scores M, a map A to the head's width and a bias b

    O = M A + b        ∂M = G Aᵀ     ∂A = Mᵀ G      ∂b = Σ G

Arithmetic is cheap here and memory is not: left to automatic differentiation, a dozen tensors as
large as the queries and keys are written, each to pages that the system must first provide. Here
a block of sequences (of tokens, where a sequence is long) passes through all formulas before the
next one does, and nothing as large as T is made but its gradient. The numbers are those of the
plain formulas, which serve whatever the blocks do not: other devices, half precision, and
`torch.compile`, which needs no help.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.maths import ksvd

# Small enough to be taken from memory in use, large enough for threads to share the work.
BLOCK_BYTES = 2**22


class Projected(NamedTuple):
    """Projection scores, tokens last, and their energy where it was asked for."""

    scores: Float[Tensor, "batch head rank token"]
    energy: Float[Tensor, "head rank"] | None
    """Σ S² over sequences and tokens."""


def project(
    t: Float[Tensor, "batch head token feature"],
    directions: Float[Tensor, "*batch head feature rank"],
    mask: Bool[Tensor, "batch token"] | None = None,
    feature_map: ksvd.FeatureMap = ksvd.COSINE,
    *,
    with_energy: bool = False,
) -> Projected:
    """Projection scores (φ(t) W)ᵀ, zero at padding: `ksvd.project`, in blocks where it can be."""
    if ksvd.is_cosine(feature_map) and is_supported(t, directions):
        of_each = directions.expand(len(t), *directions.shape[-3:])
        scores, energy = _Scores.apply(t, of_each, mask, with_energy)
        return Projected(scores.mT, energy)
    scores = ksvd.project(t, directions, mask, feature_map)
    return Projected(scores, ksvd.sum_of_squares(scores) if with_energy else None)


def read_out(
    merged: Float[Tensor, "batch head token rank"],
    readout: Float[Tensor, "*batch head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "batch token dim"]:
    """O = M A + b for every head, the heads side by side."""
    if is_supported(merged, readout) and bias.dtype == merged.dtype:
        return _ReadOut.apply(merged, readout.expand(len(merged), *readout.shape[-3:]), bias)
    return _plain_read_out(merged, readout.to(merged.dtype), bias)


class Factors(NamedTuple):
    """Samples that are maps of the same scores: O_s = M A_s + b, the heads side by side."""

    scores: Float[Tensor, "batch token inner"]
    maps: Float[Tensor, "sample inner dim"]
    bias: Float[Tensor, "*token dim"]


def factors(
    merged: Float[Tensor, "batch head token rank"],
    readouts: Float[Tensor, "sample head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Factors:
    """What `read_out_samples` multiplies.

    With the heads' maps on the diagonal of one matrix, tokens come out in their order: some
    products with zero cost less than moving S outputs.
    """
    # (head·rank × head·width) for every sample
    diagonal = torch.diag_embed(torch.einsum("s h r w -> s r w h", readouts.to(merged.dtype)))
    maps = torch.einsum("s r w h k -> s h r k w", diagonal).flatten(3).flatten(1, 2)
    of_heads = bias.to(merged.dtype).unsqueeze(-2).expand(*bias.shape[:-1], readouts.shape[1], -1)
    return Factors(merged.transpose(1, 2).flatten(2), maps, of_heads.flatten(-2))


def read_out_samples(
    merged: Float[Tensor, "batch head token rank"],
    readouts: Float[Tensor, "sample head rank width"],
    bias: Float[Tensor, "*token width"],
) -> Float[Tensor, "sample batch token dim"]:
    """O_s = M A_s + b for maps that all sequences share, the heads side by side."""
    scores, maps, bias = factors(merged, readouts, bias)
    # b of one row is a row of the maps; of a row for each token, the tokens bring them along
    if bias.ndim == 1:
        scores = torch.nn.functional.pad(scores, (0, 1), value=1.0)
        maps = torch.cat([maps, bias.expand(maps.shape[0], 1, -1)], dim=1)
    of_each = scores.flatten(0, 1).expand(maps.shape[0], -1, -1)
    if bias.ndim == 1:
        out = torch.bmm(of_each, maps)
    else:
        out = torch.baddbmm(bias.repeat(merged.shape[0], 1), of_each, maps)
    return out.unflatten(1, scores.shape[:2])


def _plain_read_out(merged: Tensor, readout: Tensor, bias: Tensor) -> Tensor:
    return (merged @ readout + bias).transpose(-3, -2).flatten(-2)


def is_plain(t: Tensor) -> bool:
    """Whether `t` is an eager tensor in single or double precision, untouched by transforms."""
    return (
        not torch.compiler.is_compiling()
        and t.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled(t.device.type)
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
    )


def is_supported(t: Tensor, other: Tensor) -> bool:
    """Whether the blocks serve these two; if not, the plain formulas do."""
    return t.device.type == "cpu" and t.dtype == other.dtype and is_plain(t)


class _Scores(torch.autograd.Function):
    """S, and Σ S², from T and W; axes as in `project`, the rank last."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, directions: Tensor, mask: Tensor | None, with_energy: bool
    ) -> tuple[Tensor, Tensor | None]:
        scale = t.new_empty(t.shape[:-1])
        scores = t.new_empty(*t.shape[:-1], directions.shape[-1])
        energy = t.new_zeros(t.shape[1], directions.shape[-1]) if with_energy else None
        for rows, tokens in blocks(t):
            block = t[rows, :, tokens].contiguous()
            # r = (‖t‖² + ε)^(−½)
            r = torch.linalg.vector_norm(block, dim=-1).square_().add_(ksvd.EPSILON).rsqrt_()
            if mask is not None:
                r.mul_(mask[rows, None, tokens])
            scale[rows, :, tokens] = r
            # S = r ∘ (T W)
            s = torch.matmul(block, directions[rows], out=scores[rows, :, tokens])
            s.mul_(r.unsqueeze(-1))
            if energy is not None:
                energy += s.square().sum(dim=(0, 2))
        ctx.save_for_backward(t, directions, scale, scores)
        ctx.mask = mask
        ctx.set_materialize_grads(False)
        return scores, energy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        t, directions, scale, scores = ctx.saved_tensors
        grad, grad_energy = grads
        if grad is None and grad_energy is None:
            return None, None, None, None
        if torch.is_grad_enabled():

            def plain(t: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
                again = ksvd.project(t, directions, ctx.mask)
                return again.mT, ksvd.sum_of_squares(again)

            return (*differentiable_gradient(plain, (t, directions), grads), None, None)
        # it has the strides of T, so the map that made T finds its gradient in order
        grad_t = torch.empty_like(t)
        grad_directions = torch.zeros_like(directions.mT).mT
        for rows, tokens in blocks(t):
            # a copy always: it is changed below
            block = t[rows, :, tokens].clone(memory_format=torch.contiguous_format)
            r, s, w = scale[rows, :, tokens], scores[rows, :, tokens], directions[rows]
            g = _sum(
                None if grad is None else grad[rows, :, tokens],
                # ∂ Σ S² = 2 S
                None if grad_energy is None else s * (2.0 * grad_energy.unsqueeze(1)),
            )
            # r ∘ G    c = r² Σ_s G ∘ S
            scaled = g * r.unsqueeze(-1)
            c = (scaled * s).sum(dim=-1).mul_(r)
            # ∂W = Tᵀ (r ∘ G)
            grad_directions[rows] += (scaled.mT @ block).mT
            # ∂T = (r ∘ G) Wᵀ − c ∘ T
            block.mul_(c.neg_().unsqueeze(-1))
            block.flatten(0, 1).baddbmm_(scaled.flatten(0, 1), w.mT.flatten(0, 1))
            grad_t[rows, :, tokens] = block
        return grad_t, grad_directions, None, None


class _ReadOut(torch.autograd.Function):
    """O from M, A and b; axes as in `read_out`."""

    @staticmethod
    def forward(ctx: Any, merged: Tensor, readout: Tensor, bias: Tensor) -> Tensor:
        batch, head, token, _ = merged.shape
        out = merged.new_empty(batch, token, head, readout.shape[-1])
        for rows, tokens in blocks(out.transpose(1, 2)):
            # O = M A + b
            product = merged[rows, :, tokens] @ readout[rows]
            torch.add(product, _of_tokens(bias, tokens), out=out[rows, tokens].transpose(1, 2))
        ctx.save_for_backward(merged, readout, bias)
        return out.flatten(2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        merged, readout, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradient(_plain_read_out, (merged, readout, bias), grads)
        grad = grads[0].unflatten(-1, (merged.shape[1], -1)).transpose(1, 2)
        grad_merged = torch.empty_like(merged)
        grad_readout = torch.zeros_like(readout)
        grad_bias = torch.zeros_like(bias)
        for rows, tokens in blocks(grad):
            g = grad[rows, :, tokens].contiguous()
            # ∂M = G Aᵀ    ∂A = Mᵀ G    ∂b = Σ G
            grad_merged[rows, :, tokens] = g @ readout[rows].mT
            grad_readout[rows] += merged[rows, :, tokens].mT @ g
            summed = g.sum(dim=(0, 1))
            if bias.ndim == 1:
                grad_bias += summed.sum(dim=0)
            else:
                grad_bias[tokens] += summed
        return grad_merged, grad_readout, grad_bias


def _of_tokens(bias: Float[Tensor, "*token width"], tokens: slice) -> Tensor:
    return bias if bias.ndim == 1 else bias[tokens]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor:
    if first is None or second is None:
        present = second if first is None else first
        assert present is not None
        return present
    return first + second


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


def blocks(t: Float[Tensor, "batch head token *rest"]) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences and of tokens that cut `t` into blocks of about `BLOCK_BYTES`."""
    batch, head, token, *rest = t.shape
    return slices(batch, token, BLOCK_BYTES // (head * math.prod(rest) * t.element_size()))


def has_whole_sequences(t: Float[Tensor, "batch head token *rest"]) -> bool:
    """Whether no block of `t` ends within a sequence."""
    return all(tokens == slice(None) for _, tokens in blocks(t))


def slices(batch: int, token: int, num_tokens: int) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences, or of the tokens of one, with about `num_tokens` tokens each."""
    num_tokens = max(1, num_tokens)
    if token > num_tokens:
        for row in range(batch):
            for start in range(0, token, num_tokens):
                yield slice(row, row + 1), slice(start, start + num_tokens)
    elif token > 0:
        for row in range(0, batch, num_tokens // token):
            yield slice(row, row + num_tokens // token), slice(None)
