"""Primal attention: the deterministic pair of branches, with the KSVD penalty.

References:
    Chen et al., 2023, arXiv:2305.19798.
"""

from torch import nn

from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.config.sections import ModelConfig
from kepsvgp.methods.base import Method
from kepsvgp.methods.kep import KepConfig


class Primal(Method):
    """Primal attention in the last layers; what it shares with KEP-SVGP is `model.kep`."""

    name, title = "primal", "Primal attention"
    shares = "kep"

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """Primal attention."""
        kep: KepConfig = self.settings(config)
        return PrimalAttention(
            config.dim,
            config.num_heads,
            rank=kep.rank,
            num_landmarks=kep.landmarks(num_tokens),
            projection=kep.projection,
            qk_bias=kep.qk_bias,
            ksvd_loss=kep.ksvd_loss,
            dropout=config.dropout,
        )
