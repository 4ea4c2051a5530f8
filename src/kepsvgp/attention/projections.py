"""Where the directions W_e and W_r of the scores E = Φ_q W_e and R = Φ_k W_r come from.

A projection names what is learnt and makes scores of it. The layer keeps what is learnt, under
these names, as parameters of its own. Both branches take one product: the directions of all heads
for E stand before those for R along the axis of the heads, as queries do before keys.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention.base import WholeLinear
from kepsvgp.attention.shards import place_of, sum_of_parts
from kepsvgp.maths import ksvd
from kepsvgp.ops import dispatch

Projection = Literal["landmark", "free", "dual"]


class Batch(NamedTuple):
    """The tokens that scores are made of."""

    x: Float[Tensor, "batch token dim"]
    qk: Float[Tensor, "batch pair token feature"]
    mask: Bool[Tensor, "batch token"] | None
    group: dist.ProcessGroup | None
    """The processes that share the sequences, if there are others."""

    def place(self) -> ksvd.Place | None:
        """Where the tokens stand in sequences that are spread over processes."""
        return None if self.group is None else place_of(self.x, self.mask, self.group)

    def whole(self, directions: Tensor) -> Tensor:
        """Directions of whole sequences from the part that the tokens at hand make."""
        return directions if self.group is None else sum_of_parts(directions, self.group)


class ScorePair(NamedTuple):
    """Projection scores of the two branches, tokens last, and what their KSVD terms need."""

    both: Float[Tensor, "batch 2 head rank token"]
    trace: Float[Tensor, "*batch"]
    """Tr(W_eᵀ W_r), mean over heads, for each sequence if each has directions of its own."""
    energy: Float[Tensor, "head rank"] | None = None
    """Σ (e² + r²) over sequences and tokens, in training."""
    dual: Float[Tensor, "batch pair rank token"] | None = None
    """H_e of all heads, then H_r, of the dual projection."""

    @property
    def e(self) -> Float[Tensor, "batch head rank token"]:
        """E."""
        return self.both[:, 0]

    @property
    def r(self) -> Float[Tensor, "batch head rank token"]:
        """R."""
        return self.both[:, 1]


class Projector:
    """A way to the directions, without state of its own."""

    def learnt(self, layer: Any) -> dict[str, nn.Parameter | nn.Module]:
        """What a layer of this size has to learn, by name."""
        raise NotImplementedError

    def scores(self, layer: Any, batch: Batch) -> ScorePair:
        """E and R of a batch, by what the layer has learnt."""
        raise NotImplementedError


class Free(Projector):
    """The paper's text: directions that are learnt, the same for all sequences."""

    def learnt(self, layer: Any) -> dict[str, nn.Parameter | nn.Module]:
        """W_e and W_r (p × s)."""
        return _weights(layer.num_heads, layer.head_dim, layer.rank)

    def scores(self, layer: Any, batch: Batch) -> ScorePair:
        """E = Φ_q W_e and R = Φ_k W_r."""
        return _scores(layer, batch, torch.cat([layer.w_e, layer.w_r]))


class Landmark(Projector):
    """The authors' program: directions from M evenly spaced tokens X_M."""

    def learnt(self, layer: Any) -> dict[str, nn.Parameter | nn.Module]:
        """W_e and W_r (M × s)."""
        return _weights(layer.num_heads, layer.num_landmarks, layer.rank)

    def scores(self, layer: Any, batch: Batch) -> ScorePair:
        """E = Φ_q X_Mᵀ W_e and R = Φ_k X_Mᵀ W_r."""
        x, _, mask, _ = batch
        directions = ksvd.landmark_directions(x, mask, layer.w_e, layer.w_r, batch.place())
        return _scores(layer, batch, batch.whole(directions))


class Dual(Projector):
    """KSVD's own stationarity conditions, W_e = Φ_kᵀ H_r / n and W_r = Φ_qᵀ H_e / n."""

    def learnt(self, layer: Any) -> dict[str, nn.Parameter | nn.Module]:
        """A_e and A_r of H_e = X A_e and H_r = X A_r."""
        return {"to_dual": WholeLinear(layer.dim, 2 * layer.num_heads * layer.rank, bias=False)}

    def scores(self, layer: Any, batch: Batch) -> ScorePair:
        """E = K H_r / n and R = Kᵀ H_e / n, as linear attention has them."""
        x, qk, mask, group = batch
        # H_eᵀ of all heads, then H_rᵀ: (batch 2·head rank token)
        dual = layer.to_dual(x).unflatten(-1, (2 * layer.num_heads, -1)).permute(0, 2, 3, 1)
        if group is None:
            both, directions = dispatch.project_dual(qk, dual, mask, with_energy=layer.training)
        else:
            directions = batch.whole(ksvd.dual_directions(qk, dual, mask, batch.place()))
            both = dispatch.project(qk, directions, mask, with_energy=layer.training)
        return _pair(both, ksvd.mean_trace(*directions.chunk(2, dim=1)), dual)


PROJECTIONS: dict[str, Projector] = {"landmark": Landmark(), "free": Free(), "dual": Dual()}


def _weights(num_heads: int, rows: int, rank: int) -> dict[str, nn.Parameter | nn.Module]:
    return {
        name: nn.Parameter(ksvd.orthonormal_columns(num_heads, rows, rank))
        for name in ("w_e", "w_r")
    }


def _scores(layer: Any, batch: Batch, directions: Tensor) -> ScorePair:
    both = dispatch.project(batch.qk, directions, batch.mask, with_energy=layer.training)
    # Tr(W_eᵀ W_r) of the weights, as in the authors' program
    return _pair(both, ksvd.mean_trace(layer.w_e, layer.w_r))


def _pair(both: dispatch.Projected, trace: Tensor, dual: Tensor | None = None) -> ScorePair:
    energy = None if both.energy is None else both.energy.unflatten(0, (2, -1)).sum(dim=0)
    return ScorePair(both.scores, trace, energy, dual)
