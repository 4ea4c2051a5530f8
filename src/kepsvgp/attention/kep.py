"""Self-attention whose output is a draw from a kernel-eigen pair of sparse variational GPs."""

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kepsvgp.attention import checks
from kepsvgp.attention.base import OfEachExample, WholeLinear, draws_of, repeat_mask
from kepsvgp.attention.kernel_svd import Call, KernelSVDAttention, KSVDLoss
from kepsvgp.attention.projections import Projection, ScorePair
from kepsvgp.attention.shards import common_generator
from kepsvgp.attention.start import start_as_program
from kepsvgp.config.defaults import KSVD_LOSS, POSTERIOR_SCALE, PROJECTION
from kepsvgp.errors import UserError, told
from kepsvgp.maths import svgp
from kepsvgp.maths.ksvd import at_least_float32
from kepsvgp.ops import dispatch, sampled
from kepsvgp.ops import noise as noise_by_place
from kepsvgp.ops.dropout import Dropout

Merge = Literal["add", "concat", "concat_lowrank"]
Noise = Literal["joint", "token"]
Branches = Literal["er", "ee", "rr"]
Start = Literal["scaled", "program"]


class KEPAttention(KernelSVDAttention):
    r"""Multi-head self-attention as a kernel-eigen pair of sparse variational GPs.

    The attention kernel $K = \Phi_q \Phi_k^\top$ is never formed. Its leading singular pairs
    enter through the scores $E = \Phi_q W_e$ and $R = \Phi_k W_r$; with the whitened inducing
    variables $v_d = \Lambda^{-1} u_d \sim q(v_d) = \mathcal{N}(m_d, L_d L_d^\top)$ the two branches
    are $F^e = E v$ and $F^r = R v$, merged and mapped to the head's width:

    $$O = (E + R)\, G + b \quad\text{or}\quad O = W_1 [E; R]\, G + b, \qquad G = v W.$$

    One draw of $v$ gives a joint draw over all tokens, at a cost linear in their number.
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
        noise: `"joint"`: one draw of v for a sequence. `"token"`: one for each token, which has
            the same marginal variances but none of the covariance across tokens.
        branches: `"er"` for the pair; `"ee"` or `"rr"` uses one branch twice (the paper's
            ablation of the asymmetry).
        qk_bias: Whether the query and key maps have a bias.
        qk_dim: Width of the queries and of the keys, all heads together; `dim` by default.
        dropout: Dropout on the output.
        ksvd_loss: `"relative"` is J̃², which does not depend on a common factor of the
            coefficients. `"objective"` is the paper's J², which shrinks them. `"residual"`, for
            the dual projection, is the squared distance from K H_r = H_e Λ and its adjoint
            relative to the scores' energy; it is zero at singular pairs only.
        start: `"scaled"`: q(v) has small means and the standard deviation `posterior_scale`, λ is
            1, and the directions of each head are orthonormal. `"program"`: the random numbers
            that the authors' program begins with, for all of these.
        posterior_scale: Standard deviation of q(v) at the start; that of the prior is 1.
        check_finite: Refuse inputs with NaN or infinity; costs a pass over the input.

    References:
        Chen et al., 2024, arXiv:2402.01476, section 4 and eqs. 16–18.

    Examples:
        >>> layer = KEPAttention(64, 4, rank=8)
        >>> layer(torch.rand(2, 16, 64)).shape
        torch.Size([2, 16, 64])
    """

    @told
    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rank: int = 10,
        merge: Merge = "add",
        num_tokens: int | None = None,
        num_landmarks: int | None = None,
        projection: Projection = PROJECTION,
        noise: Noise = "joint",
        branches: Branches = "er",
        qk_bias: bool = False,
        qk_dim: int | None = None,
        dropout: float = 0.0,
        ksvd_loss: KSVDLoss = KSVD_LOSS,
        start: Start = "scaled",
        posterior_scale: float = POSTERIOR_SCALE,
        check_finite: bool = False,
    ) -> None:
        checks.positive(
            num_tokens=1 if num_tokens is None else num_tokens, posterior_scale=posterior_scale
        )
        if merge != "add" and num_tokens is None:
            raise UserError(f"merge={merge!r} must be given num_tokens; got None.")
        if ksvd_loss == "residual" and projection != "dual":
            raise UserError(
                f"ksvd_loss='residual' must go with projection='dual'; got {projection!r}."
            )
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout must be in [0, 1); got {dropout}.")
        super().__init__(
            dim, num_heads, rank=rank, num_landmarks=num_landmarks, projection=projection,
            qk_bias=qk_bias, qk_dim=qk_dim, ksvd_loss=ksvd_loss,
        )  # fmt: skip
        self.merge, self.num_tokens = merge, num_tokens
        self.noise, self.branches = noise, branches
        self.check_finite = check_finite
        self.v_mean = nn.Parameter(torch.randn(num_heads, rank, rank) / rank**0.5)
        log_scale = torch.full((rank,), posterior_scale).log()
        self.v_tril_raw = nn.Parameter(torch.diag(log_scale).repeat(num_heads, rank, 1, 1))
        self.to_output = WholeLinear(rank, dim // num_heads)
        if num_tokens is not None and merge != "add":
            # W₁ (N × 2N), or its factors Bᵀ (s × 2N) and A (N × s), applied one after the other
            widths = [2 * num_tokens, num_tokens]
            if merge == "concat_lowrank":
                widths.insert(1, rank)
            maps = [nn.Linear(width, next_width) for width, next_width in pairwise(widths)]
            self.token_weights = nn.ParameterList([layer.weight for layer in maps])
            self.token_bias = maps[-1].bias
        self.dropout = Dropout(dropout)
        if start == "program":
            start_as_program(self)

    def forward(
        self,
        x: Float[Tensor, "*sample batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*samples batch token dim"]:
        """A draw of the attention output; in evaluation its mean, unless draws are asked for.

        In training every sequence has a draw of its own. With `num_samples` the output gains a
        leading sample axis (or `x` has one already), and all sequences share the draw of a
        sample, so that a prediction does not depend on the rest of its batch.

        Args:
            x: Tokens.
            mask: True at real tokens; without it all are.
            num_samples: Number of samples, the size of the leading axis of the result.
            generator: Source of the draws.
        """
        self._check_inputs(x, mask, num_samples)
        # E = Φ_q W_e    R = Φ_k W_r, for the sequences of all samples that x has
        sequences = x.flatten(0, -3)
        mask_of_each = repeat_mask(mask, sequences)
        pair = self.scores(sequences, mask_of_each)
        # q(v_d) = N(m_d, L_d L_dᵀ)
        v_tril = svgp.lower_cholesky(self.v_tril_raw)
        call = None
        if self.training:
            sums = self.statistics(pair, mask_of_each)
            call = Call(sums, self.log_lambda.clone(), svgp.inducing_kl(self.v_mean, v_tril))
        v, read_out = self._given(sequences, num_samples, generator), self._read_out
        if v is None:
            v = self._draws(x, v_tril, num_samples, generator)
            read_out = self._read_out if self.noise == "joint" else self._read_out_tokens
        out = self.dropout(read_out(pair, v, x.shape[:-2]))
        if call is not None:
            self.remember(call, out)
        return out

    def posterior_mean(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token dim"]:
        """The output with every v at its mean: no noise, no dropout."""
        self._check_inputs(x, mask, None)
        return self._read_out(self.scores(x, mask), at_least_float32(self.v_mean), x.shape[:-2])

    @property
    def has_narrow_factors(self) -> bool:
        """Whether samples are maps of the same scores, and these are narrower than the tokens."""
        return self.noise == "joint" and self.num_heads * self.rank < self.dim

    def factors(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int,
        generator: torch.Generator | None = None,
    ) -> sampled.Factors:
        """What `forward` multiplies, in evaluation and with `noise="joint"`, to have samples."""
        self._check_inputs(x, mask, num_samples)
        v = self._draws(x, svgp.lower_cholesky(self.v_tril_raw), num_samples, generator)
        merged = self._merge(self.scores(x, mask)).mT
        return sampled.factors(merged, self._readout(v.squeeze(1)), self._bias())

    @property
    def can_draw_first(self) -> bool:
        """Whether the draws of a token can be had without those of the others."""
        return self.merge == "add" and self.noise == "joint"

    def first_token(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "batch token"] | None = None,
        *,
        num_samples: int,
    ) -> Float[Tensor, "sample batch one dim"]:
        """What `forward` gives in evaluation for the first token of every sequence."""
        self._check_inputs(x, mask, num_samples)
        pair = self.scores(x, mask)
        first = pair._replace(both=pair.both[..., :1])
        v = self._draws(x[:, :1], svgp.lower_cholesky(self.v_tril_raw), num_samples, None)
        return self._read_out(first, v, x.shape[:-2])

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "sample head rank value"] | Int[Tensor, " sample"]:
        """Draws of the inducing variables v; with `noise="token"`, the seeds of such draws."""
        if self.noise == "token":
            return noise_by_place.draw_seeds(num_samples, generator=generator)
        return self._draw_inducing(svgp.lower_cholesky(self.v_tril_raw), num_samples, generator)

    def _draw_inducing(
        self, v_tril: Tensor, num_draws: int, generator: torch.Generator | None
    ) -> Tensor:
        if self.sequence_group is not None:
            generator = common_generator(generator, self.sequence_group, v_tril.device)
        v_mean = at_least_float32(self.v_mean)
        return svgp.sample_inducing(v_mean, v_tril, num_draws, generator=generator)

    def _given(
        self, sequences: Tensor, num_samples: int | None, generator: torch.Generator | None
    ) -> Float[Tensor, "*sequence head rank value"] | None:
        """The v that is not drawn: its mean in evaluation, or one that was set for each example."""
        held = draws_of(self)
        if isinstance(held, OfEachExample):
            return held.for_sequences(len(sequences))
        is_asked = held is not None or num_samples is not None or generator is not None
        return None if self.training or is_asked else at_least_float32(self.v_mean)

    def _draws(
        self,
        x: Tensor,
        v_tril: Tensor,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, "*draw head rank value"]:
        """Inducing variables whose leading axes broadcast against those of the tokens.

        `(batch,)` where every sequence has a draw of its own, `(sample, 1)` where all share that
        of a sample; with `noise="token"` the axis of the tokens follows.
        """
        drawn = self._shared_draws(num_samples, generator)
        if drawn is None:
            axes = x.shape[:-2] if self.noise == "joint" else x.shape[:-1]
            v = self._draw_inducing(v_tril, math.prod(axes), generator)
            return v.unflatten(0, axes)
        v = drawn if self.noise == "joint" else self._draw_by_place(v_tril, drawn, x.shape[-2])
        return v if num_samples is None else v.unsqueeze(1)

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

    def _draw_by_place(self, v_tril: Tensor, seeds: Tensor, num_tokens: int) -> Tensor:
        """Inducing variables for every sample and token, whatever the sequence's length."""
        eps = noise_by_place.normal(seeds.to(v_tril.device), num_tokens, *v_tril.shape[:-1])
        return svgp.inducing_from_noise(at_least_float32(self.v_mean), v_tril, eps.to(v_tril))

    def _read_out(
        self, pair: ScorePair, v: Float[Tensor, "*draw head rank value"], axes: torch.Size
    ) -> Float[Tensor, "*samples batch token dim"]:
        """O = M G + b, with M = E + R or W₁ [E; R]."""
        merged = self._merge(pair).mT.unflatten(0, axes)
        return dispatch.read_out(merged, self._readout(v), self._bias())

    def _readout(self, v: Float[Tensor, "*draw head rank value"]) -> Tensor:
        """G = v W, the map from scores to the head's width."""
        return v @ at_least_float32(self.to_output.weight).mT

    def _read_out_tokens(
        self, pair: ScorePair, v: Float[Tensor, "*draw token head rank value"], axes: torch.Size
    ) -> Float[Tensor, "*samples batch token dim"]:
        """O = M W + b, with M = F^e + F^r or W₁ [F^e; F^r]: every token has a v of its own."""
        both = self._branches(pair)

        def values(scores: Tensor) -> Tensor:
            # f_nd = s_nᵀ v_nd
            scores = scores.unflatten(0, axes)
            return torch.einsum("... h r n, ... n h r v -> ... h v n", scores, v.to(both.dtype))

        # the branches share v, so where they are added their scores can be
        if self.merge == "add":
            merged = values(both.sum(dim=1))
        else:
            merged = self._over_tokens(torch.cat([*map(values, both.unbind(1))], dim=-1))
        weight = self.to_output.weight.mT.to(merged.dtype)
        return svgp.read_out(merged.mT, weight, self._bias())

    def _merge(self, pair: ScorePair) -> Float[Tensor, "batch head rank token"]:
        """(E + R)ᵀ, or (W₁ [E; R])ᵀ."""
        both = self._branches(pair)
        if self.merge == "add":
            return both.sum(dim=1)
        # [E; R] of each head and direction
        return self._over_tokens(both.permute(0, 2, 3, 1, 4).flatten(-2))

    def _branches(self, pair: ScorePair) -> Float[Tensor, "batch 2 head rank token"]:
        if self.branches == "er":
            return pair.both
        one = pair.e if self.branches == "ee" else pair.r
        return torch.stack([one, one], dim=1)

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

    def _check_inputs(self, x: Tensor, mask: Tensor | None, num_samples: int | None) -> None:
        num_tokens = None if self.merge == "add" else self.num_tokens
        checks.tokens(x, mask, num_samples, dim=self.dim, num_tokens=num_tokens)
        if self.check_finite and not x.isfinite().all():
            raise UserError("x must be finite; it has NaN or infinite entries.")

    def set_factor(self, factor: Float[Tensor, "*blocks size size"]) -> None:
        """Gives q(v) the covariance L Lᵀ, in blocks of any size; see `svgp.inducing_from_noise`."""
        size = factor.shape[-1]
        groups = self.num_heads if size < self.v_mean.numel() else 1
        factor = factor.to(self.v_mean).reshape(groups, -1, size, size)
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        raw = factor.tril(diagonal=-1) + torch.diag_embed(diagonal.log())
        self._reshape_factor(raw.shape)
        with torch.no_grad():
            self.v_tril_raw.copy_(raw)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """Multiplies v by a factor and divides the map that reads it: the output stays."""
        self.v_mean.mul_(factor)
        self.set_factor(factor * svgp.lower_cholesky(self.v_tril_raw))
        self.to_output.weight.div_(factor)

    def _reshape_factor(self, shape: torch.Size) -> None:
        if self.v_tril_raw.shape != shape:
            made = self.v_tril_raw.new_empty(shape)
            self.v_tril_raw = nn.Parameter(made, requires_grad=self.v_tril_raw.requires_grad)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}v_tril_raw")
        if stored is not None and math.prod(stored.shape[:-1]) == self.v_mean.numel():
            self._reshape_factor(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The settings that the parameters do not show."""
        return (
            f"num_heads={self.num_heads}, rank={self.rank}, merge={self.merge!r}, "
            f"projection={self.projection!r}, noise={self.noise!r}, branches={self.branches!r}"
        )
