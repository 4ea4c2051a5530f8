"""Primal attention: the deterministic pair of branches, with the KSVD penalty.

References:
    Chen et al., 2023, arXiv:2305.19798.
"""

from typing import Any

from torch import nn

from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.config.sections import ModelConfig, RunConfig
from kepsvgp.methods.base import Method
from kepsvgp.methods.kep import KEP, KepConfig


class Primal(Method):
    """Primal attention in the last layers; what it shares with KEP-SVGP is `model.kep`."""

    name, title = "primal", "Primal attention"

    def settings(self, config: ModelConfig) -> Any:
        """Those of the KEP-SVGP layers."""
        return KEP().settings(config)

    def normalised(self, config: RunConfig) -> RunConfig:
        """Its settings stand in the section of KEP-SVGP."""
        plain = super().normalised(config)
        model = plain.model.model_copy(update={"kep": self.settings(config.model)})
        return plain.model_copy(update={"model": model})

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """Primal attention."""
        kep: KepConfig = self.settings(config)
        return PrimalAttention(
            config.dim,
            config.num_heads,
            rank=kep.rank,
            num_landmarks=kep.num_landmarks,
            projection=kep.projection,
            qk_bias=kep.qk_bias,
            dropout=config.dropout,
        )
