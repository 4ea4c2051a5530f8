"""KEP-SVGP: the paper's own method, its attention in the last layers."""

from typing import Literal

from pydantic import Field
from torch import nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.config.defaults import POSTERIOR_SCALE, PROJECTION
from kepsvgp.config.sections import TEXTS, Count, Limit, ModelConfig, RunConfig, Section
from kepsvgp.methods.base import Method


class KepConfig(Section):
    """The KEP-SVGP layers; Primal attention shares what it has in common with them.

    Attributes:
        rank: Number s of singular pairs kept.
        merge: How the two branches come together; `auto` is `concat` for images, `add` for text.
        num_landmarks: Tokens that make the data-dependent directions; None for 10 · rank.
        projection: Where the directions come from; see `KEPAttention`.
        noise: One draw for a sequence, or one for each token.
        branches: The pair, or one branch twice (the ablation of the asymmetry).
        qk_bias: Whether queries and keys have a bias.
        ksvd_loss: The paper's J², J relative to its size, or the residual of the singular pairs
            (`dual` alone).
        posterior_scale: Standard deviation of q(v) at the start; that of the prior is 1.
    """

    rank: Count = 10
    merge: Literal["auto", "add", "concat", "concat_lowrank"] = "auto"
    num_landmarks: Limit = None
    projection: Literal["landmark", "free", "dual"] = PROJECTION
    noise: Literal["joint", "token"] = "joint"
    branches: Literal["er", "ee", "rr"] = "er"
    qk_bias: bool = False
    ksvd_loss: Literal["objective", "relative", "residual"] = "objective"
    posterior_scale: float = Field(default=POSTERIOR_SCALE, ge=1e-30, le=1e30)


class KEP(Method):
    """KEP-SVGP attention in the last layers, trained by the evidence lower bound."""

    name, title = "kep", "KEP-SVGP"
    section = KepConfig

    def check(self, config: RunConfig) -> None:
        """Refuses the concatenation merge over texts."""
        merge = self.settings(config.model).merge
        if config.data.name in TEXTS and merge.startswith("concat"):
            raise ValueError(
                f"model.kep.merge must be 'add' for texts, whose lengths differ; got {merge!r}."
            )

    def normalised(self, config: RunConfig) -> RunConfig:
        """`auto` becomes what it means, so that a run asked for by either name is one run."""
        config = super().normalised(config)
        kep = self.settings(config.model)
        if kep.merge != "auto":
            return config
        merge = "add" if config.data.name in TEXTS else "concat"
        model = config.model.model_copy(update={"kep": kep.model_copy(update={"merge": merge})})
        return config.model_copy(update={"model": model})

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """KEP-SVGP attention, merged as the task allows."""
        kep: KepConfig = self.settings(config)
        by_task = "add" if num_tokens is None else "concat"
        return KEPAttention(
            config.dim,
            config.num_heads,
            rank=kep.rank,
            merge=by_task if kep.merge == "auto" else kep.merge,
            num_tokens=num_tokens,
            num_landmarks=kep.num_landmarks,
            projection=kep.projection,
            noise=kep.noise,
            branches=kep.branches,
            qk_bias=kep.qk_bias,
            dropout=config.dropout,
            ksvd_loss=kep.ksvd_loss,
            posterior_scale=kep.posterior_scale,
        )

    def kl_weight(self, config: RunConfig) -> float:
        """As the configuration says."""
        return config.objective.kl_weight
