"""KEP-SVGP: the paper's own method, its attention in the last layers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.config.defaults import KSVD_LOSS, POSTERIOR_SCALE, PROJECTION
from kepsvgp.config.sections import TEXTS, Count, Limit, ModelConfig, RunConfig, Section
from kepsvgp.data import Benchmark, Examples
from kepsvgp.inference.posterior import fit_posterior
from kepsvgp.methods.afterwards import train_then
from kepsvgp.methods.base import Method
from kepsvgp.models.blocks import Classifier
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.steps import derive_seed

# so many examples stand for the training set when the posterior is fitted at the end
REFIT_EXAMPLES = 2000


class KepConfig(Section):
    """The KEP-SVGP layers; Primal attention shares what it has in common with them.

    Attributes:
        rank: Number s of singular pairs kept.
        merge: How the two branches come together; `auto` is `concat` for images, `add` for text.
        num_landmarks: Tokens that make the data-dependent directions; None for 10 · rank,
            `distinct` for as many of these as an image has tokens.
        projection: Where the directions come from; see `KEPAttention`.
        noise: One draw for a sequence, or one for each token.
        branches: The pair, or one branch twice (the ablation of the asymmetry).
        qk_bias: Whether queries and keys have a bias.
        ksvd_loss: J relative to its size, the paper's J² (`objective`), or the residual of the
            singular pairs (`dual` alone).
        start: What q(v), λ and the coefficients begin with; see `KEPAttention`.
        posterior_scale: Standard deviation of q(v) at the start; that of the prior is 1.
        refit: Whether the spread of q(v) is fitted again at the end of the training, as
            `kepsvgp.fit_posterior` does, by a part of the training set and the validation set;
            never with noise by token, for which it is not defined.
    """

    rank: Count = 10
    merge: Literal["auto", "add", "concat", "concat_lowrank"] = "auto"
    num_landmarks: Limit | Literal["distinct"] = None
    projection: Literal["landmark", "free", "dual"] = PROJECTION
    noise: Literal["joint", "token"] = "joint"
    branches: Literal["er", "ee", "rr"] = "er"
    qk_bias: bool = False
    ksvd_loss: Literal["relative", "objective", "residual"] = KSVD_LOSS
    start: Literal["scaled", "program"] = "scaled"
    posterior_scale: float = Field(default=POSTERIOR_SCALE, ge=1e-30, le=1e30)
    refit: bool = True

    def landmarks(self, num_tokens: int | None) -> int | None:
        """The number of landmarks in sequences of this length; None for 10 · rank."""
        if self.num_landmarks != "distinct":
            return self.num_landmarks
        return None if num_tokens is None else min(10 * self.rank, num_tokens)


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
            num_landmarks=kep.landmarks(num_tokens),
            projection=kep.projection,
            noise=kep.noise,
            branches=kep.branches,
            qk_bias=kep.qk_bias,
            dropout=config.dropout,
            ksvd_loss=kep.ksvd_loss,
            start=kep.start,
            posterior_scale=kep.posterior_scale,
        )

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains by the evidence lower bound, then fits the posterior of every checkpoint."""
        kep = self.settings(config.model)
        if not kep.refit or kep.noise == "token":
            return super().train(config, benchmark, out, **options)
        size = len(benchmark.train)
        order = torch.Generator().manual_seed(derive_seed(config.seed, "refit"))
        some = benchmark.train.subset(torch.randperm(size, generator=order)[:REFIT_EXAMPLES])

        def fit(model: Classifier, batches: Callable[[Examples], Iterable[Any]]) -> None:
            fit_posterior(
                model, batches(some), validation=batches(benchmark.val),
                num_train=size, device=next(model.parameters()).device,
            )  # fmt: skip

        return train_then(fit, config, benchmark, out, **options)

    def kl_weight(self, config: RunConfig, num_train: int) -> float:
        """As the configuration says."""
        return config.objective.kl_weight_for(num_train)
