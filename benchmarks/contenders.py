"""What the layer is measured against, beside the attention layers of the library."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import KEPAttention, Penalties
from kepsvgp.maths import ksvd, svgp


class NaiveAttention(nn.Module):
    """Softmax attention as its formula says, with every N × N matrix stored."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_output = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        **_: Any,
    ) -> Float[Tensor, "batch token dim"]:
        """softmax(Q Kᵀ / √d) V; `mask` is True at real tokens."""
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.to_output((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class PaperKEPAttention(KEPAttention):
    """The layer as the paper's equations read: f = m + L ε at every token, by eq. 16.

    The factor of the covariance, N × s for each of s outputs, is formed for both branches; that
    is the N × s × s tensor that drawing u instead of f avoids.
    """

    def forward(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch token dim"]:
        """One draw for every sequence; fixed draws and samples are not provided for."""
        phi_q, phi_k = (
            ksvd.features(t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2))
            for t in self.to_qk(x).chunk(2, dim=-1)
        )
        landmarks = ksvd.landmarks(x, mask, self.num_landmarks)
        by_head = landmarks.unflatten(-1, (self.num_heads, -1))
        # E = Φ_q X_Mᵀ W_e    R = Φ_k X_Mᵀ W_r
        e = phi_q @ torch.einsum("b m h f, h m s -> b h f s", by_head, self.w_e)
        r = phi_k @ torch.einsum("b m h f, h m s -> b h f s", by_head, self.w_r)

        v_tril = svgp.lower_cholesky(self.v_tril_raw)
        shape = (len(x), self.num_heads, self.rank, self.rank, 1)
        noise = torch.randn(shape, generator=generator, dtype=e.dtype)
        branches = []
        for scores in (e, r):
            q = svgp.posterior(scores, self.v_mean, v_tril)
            # F_d = m_d + A_d ε_d: (… value token rank)(… value rank 1)
            branches.append(q.mean + (q.factor @ noise).squeeze(-1).mT)
        if self.merge == "add":
            out = self.to_output(branches[0] + branches[1])
        else:
            stacked = torch.cat([self.to_output(branch) for branch in branches], dim=2)
            out = (self._over_tokens(stacked.mT) + self.token_bias).mT
        out = out.transpose(1, 2).flatten(2)
        if self.training:
            kl = svgp.inducing_kl(self.v_mean, v_tril)
            energy = ksvd.sum_of_squares(e.mT) + ksvd.sum_of_squares(r.mT)
            num_tokens = energy.new_tensor(x.shape[0] * x.shape[1])
            trace = ksvd.mean_trace(self.w_e, self.w_r)
            j = ksvd.objective(energy, num_tokens, self.log_lambda, trace)
            self.remember(Penalties(kl, j.square()), out)
        return out

    def penalties(self) -> Penalties:
        """KL and KSVD penalty of the last training pass."""
        return self.recall()[-1]
