"""Self-attention whose output is a draw from a kernel-eigen pair of sparse variational GPs."""

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import PenalisedAttention, Penalties, draws_of, repeat_mask
from kepsvgp.attention.shards import common_generator, place_of, sum_of_parts
from kepsvgp.attention.statistics import (
    ScorePair,
    Statistics,
    ksvd_objective,
    ksvd_residual,
    score_pair,
    statistics,
    sum_over_processes,
)
from kepsvgp.errors import UserError
from kepsvgp.maths import ksvd, svgp
from kepsvgp.maths.ksvd import at_least_float32
from kepsvgp.ops import blocked, blocked_dual
from kepsvgp.ops import noise as noise_by_place
from kepsvgp.ops.dropout import Dropout

Merge = Literal["add", "concat", "concat_lowrank"]
Projection = Literal["landmark", "free", "dual"]
Noise = Literal["joint", "token"]
Branches = Literal["er", "ee", "rr"]
KSVDLoss = Literal["objective", "residual"]


class Pass(NamedTuple):
    """What a training pass leaves behind for its penalties."""

    statistics: Statistics
    log_lambda: Float[Tensor, "head rank"]
    kl: Float[Tensor, ""]


class KEPAttention(PenalisedAttention):
    r"""Multi-head self-attention as a kernel-eigen pair of sparse variational GPs.

    The attention kernel $K = \Phi_q \Phi_k^\top$ is never formed. Its leading singular pairs
    enter through the scores $E = \Phi_q W_e$ and $R = \Phi_k W_r$; with the inducing variables
    $u_d \sim q(u_d) = \mathcal{N}(m_d, L_d L_d^\top)$ the two branches are
    $F^e = E \Lambda^{-1} u$ and $F^r = R \Lambda^{-1} u$, merged and mapped to the head's width:

    $$O = (E + R)\, G + b \quad\text{or}\quad O = W_1 [E; R]\, G + b,
      \qquad G = \Lambda^{-1} u\, W.$$

    One draw of $u$ gives a joint draw over all tokens, at a cost linear in their number.
    Training passes leave behind what the objective needs (`penalties`); nothing else is kept.

    Args:
        dim: Width of the tokens, divided evenly among the heads.
        num_heads: Number of heads, each with a kernel and a pair of GPs of its own.
        rank: Number s of singular pairs kept, which is the number of inducing variables.
        merge: How the branches come together. `"add"` serves sequences of any length;
            `"concat"` learns a map over the 2N stacked outputs, `"concat_lowrank"` its
            factorisation of rank s. Both need `num_tokens`.
        num_tokens: Length of every sequence, for the concat merges.
        num_landmarks: Tokens, evenly spaced, that define the data-dependent directions of the
            `"landmark"` projection; `10 * rank` by default.
        projection: `"dual"`: W_e = Φ_kᵀ X A_r, KSVD's own stationarity condition, with no
            dependence on position or length. `"landmark"`, as in the authors' program: W_e =
            X_Mᵀ A_e from landmark tokens X_M. `"free"`: W_e learnt, the same for all sequences.
        noise: `"joint"`: one draw of u for a sequence. `"token"`: one for each token, which has
            the same marginal variances but none of the covariance across tokens.
        branches: `"er"` for the pair; `"ee"` or `"rr"` uses one branch twice (the paper's
            ablation of the asymmetry).
        qk_bias: Whether the query and key maps have a bias.
        dropout: Dropout on the output.
        ksvd_loss: `"objective"` is the paper's J². `"residual"`, for the dual projection, is
            the squared distance from K H_r = H_e Λ and its adjoint relative to the scores'
            energy; it is zero at singular pairs only.
        posterior_scale: Standard deviation of q(u) at the start; that of the prior is 1.
        check_finite: Refuse inputs with NaN or infinity; costs a pass over the input.

    References:
        Chen et al., 2024, arXiv:2402.01476, section 4 and eqs. 16–18.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rank: int = 10,
        merge: Merge = "add",
        num_tokens: int | None = None,
        num_landmarks: int | None = None,
        projection: Projection = "dual",
        noise: Noise = "joint",
        branches: Branches = "er",
        qk_bias: bool = False,
        dropout: float = 0.0,
        ksvd_loss: KSVDLoss = "objective",
        posterior_scale: float = 0.1,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        num_landmarks = 10 * rank if num_landmarks is None else num_landmarks
        checks.positive(
            dim=dim, num_heads=num_heads, rank=rank, num_landmarks=num_landmarks,
            num_tokens=1 if num_tokens is None else num_tokens, posterior_scale=posterior_scale,
        )  # fmt: skip
        checks.choice("merge", merge, Merge)
        checks.choice("projection", projection, Projection)
        checks.choice("noise", noise, Noise)
        checks.choice("branches", branches, Branches)
        checks.choice("ksvd_loss", ksvd_loss, KSVDLoss)
        if dim % num_heads != 0:
            raise UserError(f"dim must be divisible by num_heads={num_heads}; got {dim}.")
        if merge != "add" and num_tokens is None:
            raise UserError(f"merge={merge!r} must be given num_tokens; got None.")
        if ksvd_loss == "residual" and projection != "dual":
            raise UserError(
                f"ksvd_loss='residual' must go with projection='dual'; got {projection!r}."
            )
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout must be in [0, 1); got {dropout}.")
        self.dim, self.num_heads, self.rank = dim, num_heads, rank
        self.merge, self.num_tokens = merge, num_tokens
        self.projection, self.num_landmarks = projection, num_landmarks
        self.noise, self.branches, self.ksvd_loss = noise, branches, ksvd_loss
        self.check_finite = check_finite
        # the processes that share sequences; `sequence_parallel` sets it
        self.sequence_group: dist.ProcessGroup | None = None
        self.feature_map = ksvd.COSINE

        self.to_qk = nn.Linear(dim, 2 * dim, bias=qk_bias)
        if projection == "dual":
            self.to_dual = nn.Linear(dim, 2 * num_heads * rank, bias=False)
        else:
            rows = num_landmarks if projection == "landmark" else dim // num_heads
            self.w_e = nn.Parameter(ksvd.orthonormal_columns(num_heads, rows, rank))
            self.w_r = nn.Parameter(ksvd.orthonormal_columns(num_heads, rows, rank))
        self.log_lambda = nn.Parameter(torch.zeros(num_heads, rank))
        self.u_mean = nn.Parameter(torch.randn(num_heads, rank, rank) / rank**0.5)
        log_scale = torch.full((rank,), posterior_scale).log()
        self.u_tril_raw = nn.Parameter(torch.diag(log_scale).repeat(num_heads, rank, 1, 1))
        self.to_output = nn.Linear(rank, dim // num_heads)
        if num_tokens is not None and merge != "add":
            # W₁ (N × 2N), or its factors Bᵀ (s × 2N) and A (N × s), applied one after the other
            widths = [2 * num_tokens, num_tokens]
            if merge == "concat_lowrank":
                widths.insert(1, rank)
            maps = [nn.Linear(width, next_width) for width, next_width in pairwise(widths)]
            self.token_weights = nn.ParameterList([layer.weight for layer in maps])
            self.token_bias = maps[-1].bias
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """A draw of the attention output.

        Without `num_samples` every sequence has a draw of its own. With it, the output gains a
        leading sample axis (or `x` has one already), and all sequences share the draw of a
        sample, so that a prediction does not depend on the rest of its batch.

        Args:
            x: Tokens.
            mask: True at real tokens; without it all are.
            num_samples: Number of samples, the size of the leading axis of the result.
            generator: Source of the draws.
        """
        self._check_inputs(x, mask, num_samples)
        sequences = x.flatten(0, -3)
        mask_of_each = repeat_mask(mask, sequences)
        pair = self.scores(sequences, mask_of_each)
        u_tril = svgp.lower_cholesky(self.u_tril_raw)
        if self.training:
            # now and not when asked for: parameters may be sharded outside of the forward pass
            kl = svgp.inducing_kl(self.log_lambda, self.u_mean, u_tril)
            self.remember(Pass(statistics(pair, mask_of_each), self.log_lambda.clone(), kl))
        if self.noise == "token":
            return self.dropout(self._token_draws(pair, u_tril, x, num_samples, generator))
        readout = self._readout(self._draws(x, u_tril, num_samples, generator))
        merged = self._merge(pair).mT
        if num_samples is None:
            return self.dropout(blocked.read_out(merged, readout, self._bias()))
        if x.ndim == 3:
            return self.dropout(blocked.read_out_samples(merged, readout, self._bias()))
        of_each = readout.repeat_interleave(x.shape[1], dim=0)
        out = blocked.read_out(merged, of_each, self._bias())
        return self.dropout(out.unflatten(0, x.shape[:2]))

    def factors(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int,
        generator: torch.Generator | None = None,
    ) -> blocked.Factors:
        """What `forward` multiplies, in evaluation and with `noise="joint"`, to have samples."""
        self._check_inputs(x, mask, num_samples)
        u = self._draws(x, svgp.lower_cholesky(self.u_tril_raw), num_samples, generator)
        return blocked.factors(self._merge(self.scores(x, mask)).mT, self._readout(u), self._bias())

    def posterior_mean(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token dim"]:
        """The output with every u at its mean: no noise, no dropout."""
        self._check_inputs(x, mask, None)
        merged = self._merge(self.scores(x, mask)).mT
        readout = self._readout(at_least_float32(self.u_mean))
        return blocked.read_out(merged, readout, self._bias())

    def scores(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> ScorePair:
        """Projection scores Eᵀ = (Φ_q W_e)ᵀ and Rᵀ = (Φ_k W_r)ᵀ, zero at padding."""
        # (batch 2·head token feature): queries of all heads, then keys of all heads
        qk = self.to_qk(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2)
        if self.projection == "dual":
            return self._dual_scores(x, qk, mask)
        # both branches in one product: their directions stand along the axis of the heads
        if self.projection == "free":
            directions = torch.cat([self.w_e, self.w_r])
        else:
            place = self._place(x, mask)
            directions = ksvd.landmark_directions(x, mask, self.w_e, self.w_r, place)
            directions = self._whole(directions)
        both = blocked.project(qk, directions, mask, self.feature_map, with_energy=self.training)
        return score_pair(both, ksvd.mean_trace(self.w_e, self.w_r))

    def penalties(self) -> Penalties:
        """KL of q(u), and the KSVD penalty of the last training pass.

        The pass is forgotten by the call, so that no graph outlives its step. Where processes
        share a batch (`torch.distributed` is initialised), the penalty is that of the whole
        batch, and all of them must call.
        """
        last: Pass = self.recall()
        total = sum_over_processes(last.statistics)
        if self.ksvd_loss == "residual":
            return Penalties(last.kl, ksvd_residual(total))
        return Penalties(last.kl, ksvd_objective(total, last.log_lambda))

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "sample head rank value"] | Int[Tensor, " sample"]:
        """Draws of the inducing variables u; with `noise="token"`, the seeds of such draws."""
        if self.noise == "token":
            return noise_by_place.draw_seeds(num_samples, generator=generator)
        u_tril = svgp.lower_cholesky(self.u_tril_raw)
        return self._draw_inducing(u_tril, num_samples, generator)

    def _draw_inducing(
        self, u_tril: Tensor, num_draws: int, generator: torch.Generator | None
    ) -> Tensor:
        if self.sequence_group is not None:
            generator = common_generator(generator, self.sequence_group, u_tril.device)
        u_mean = at_least_float32(self.u_mean)
        return svgp.sample_inducing(u_mean, u_tril, num_draws, generator=generator)

    def _dual_scores(self, x: Tensor, qk: Tensor, mask: Tensor | None) -> ScorePair:
        # H_eᵀ of all heads, then H_rᵀ: (batch 2·head rank token)
        dual = self.to_dual(x).unflatten(-1, (2 * self.num_heads, -1)).permute(0, 2, 3, 1)
        both, directions = blocked_dual.dual_scores(
            qk, dual, mask, self.feature_map, with_energy=self.training,
            place=self._place(x, mask), whole=self._whole,
        )  # fmt: skip
        pair = score_pair(both, ksvd.mean_trace(*directions.chunk(2, dim=1)))
        if self.training and self.ksvd_loss == "residual":
            if mask is not None:
                dual = dual * mask[:, None, None, :]
            h_e, h_r = dual.chunk(2, dim=1)
            residual = ksvd.residual_sums(pair.e, h_e, self.log_lambda)
            residual = residual + ksvd.residual_sums(pair.r, h_r, self.log_lambda)
            pair = pair._replace(residual=residual)
        return pair

    def _place(self, x: Tensor, mask: Tensor | None) -> ksvd.Place | None:
        """Where the tokens stand in sequences that are spread over processes."""
        return None if self.sequence_group is None else place_of(x, mask, self.sequence_group)

    def _whole(self, directions: Tensor) -> Tensor:
        """Directions of whole sequences from the part that the tokens at hand make."""
        if self.sequence_group is None:
            return directions
        return sum_of_parts(directions, self.sequence_group)

    def _merge(self, pair: ScorePair) -> Float[Tensor, "batch head rank token"]:
        """(E + R)ᵀ, or (W₁ [E; R])ᵀ."""
        first, second = self._branches(pair.e, pair.r)
        if self.merge == "add":
            return first + second
        return self._over_tokens(torch.cat([first, second], dim=-1))

    def _branches(self, e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return {"er": (e, r), "ee": (e, e), "rr": (r, r)}[self.branches]

    def _draws(
        self,
        x: Tensor,
        u_tril: Tensor,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, "draw head rank value"]:
        """Inducing variables for every sequence, or for every sample."""
        shared = self._shared_draws(num_samples, generator)
        return self._draw_inducing(u_tril, len(x), generator) if shared is None else shared

    def _shared_draws(
        self, num_samples: int | None, generator: torch.Generator | None
    ) -> Tensor | None:
        """The draws that all sequences share: those held by `fixed_draws`, or new ones."""
        held = draws_of(self)
        if held is None:
            return None if num_samples is None else self.draw(num_samples, generator=generator)
        expected = 1 if num_samples is None else num_samples
        if len(held) != expected:
            raise UserError(f"num_samples must be the {len(held)} fixed draws; got {num_samples}.")
        return held

    def _readout(self, u: Float[Tensor, "*draw head rank value"]) -> Tensor:
        """G = Λ⁻¹ u W, the map from scores to the head's width."""
        return svgp.whiten(self.log_lambda, u) @ at_least_float32(self.to_output.weight).mT

    def _bias(self) -> Tensor:
        """b, or what becomes of it under the map over tokens: (W₁ 1) bᵀ + c."""
        if self.merge == "add":
            return self.to_output.bias
        ones = self.to_output.bias.new_ones(2 * (self.num_tokens or 0))
        rows = self._over_tokens(ones).unsqueeze(-1)
        return rows * self.to_output.bias + self.token_bias.unsqueeze(-1)

    def _over_tokens(self, t: Float[Tensor, "*shape stacked"]) -> Float[Tensor, "*shape token"]:
        """W₁ t, along the last axis."""
        for weight in self.token_weights:
            t = nn.functional.linear(t, weight.to(t.dtype))
        return t

    def _token_draws(
        self,
        pair: ScorePair,
        u_tril: Tensor,
        x: Tensor,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Outputs with a draw of u for each token, the same for both branches."""
        seeds = self._shared_draws(num_samples, generator)
        if seeds is None:
            u = self._draw_inducing(u_tril, len(pair.e) * x.shape[-2], generator)
            u = u.unflatten(0, x.shape[:-1])
        else:
            u = self._draw_by_position(u_tril, seeds, x.shape[-2])
            u = u.unsqueeze(1) if num_samples is not None else u
        first, second = self._branches(pair.e, pair.r)
        # both draw the same u, so where they are added their scores can be
        branches = [first + second] if self.merge == "add" else [first, second]
        inverse = torch.exp(-at_least_float32(self.log_lambda)).unsqueeze(-1).to(first.dtype)
        values = [
            # f_nd = (Λ⁻¹ s_n)ᵀ u_nd
            torch.einsum(
                "... h r n, ... n h r v -> ... h v n",
                (inverse * scores).unflatten(0, x.shape[:-2]),
                u.to(scores.dtype),
            )
            for scores in branches
        ]
        merged = values[0] if self.merge == "add" else self._over_tokens(torch.cat(values, dim=-1))
        out = merged.mT @ self.to_output.weight.mT.to(merged.dtype) + self._bias()
        return out.transpose(-3, -2).flatten(-2)

    def _draw_by_position(self, u_tril: Tensor, seeds: Tensor, num_tokens: int) -> Tensor:
        """Inducing variables for every sample and position, whatever the sequence's length."""
        eps = noise_by_place.normal(seeds.to(u_tril.device), num_tokens, *u_tril.shape[:-1])
        return svgp.inducing_from_noise(at_least_float32(self.u_mean), u_tril, eps.to(u_tril))

    def _check_inputs(self, x: Tensor, mask: Tensor | None, num_samples: int | None) -> None:
        num_tokens = None if self.merge == "add" else self.num_tokens
        checks.tokens(x, mask, num_samples, dim=self.dim, num_tokens=num_tokens)
        if self.check_finite and not x.isfinite().all():
            raise UserError("x must be finite; it has NaN or infinite entries.")

    def extra_repr(self) -> str:
        """The settings that the parameters do not show."""
        return (
            f"num_heads={self.num_heads}, rank={self.rank}, merge={self.merge!r}, "
            f"projection={self.projection!r}, noise={self.noise!r}, branches={self.branches!r}"
        )
