"""SGPA: sparse Gaussian process attention, by default in all layers.

References:
    Chen and Li, 2023, arXiv:2303.02444.
"""

from typing import Literal

from torch import nn

from kepsvgp.attention.sgpa import SGPAttention
from kepsvgp.config.sections import Count, ModelConfig, RunConfig, Section
from kepsvgp.methods.base import Method


class SgpaConfig(Section):
    """The SGPA layers.

    Attributes:
        num_inducing: Global inducing keys of a head.
        kernel: `auto` is `ard` for images and `exponential` for text, as in its paper.
        layers: How many of the last layers are SGPA; its paper has all.
    """

    num_inducing: Count = 50
    kernel: Literal["auto", "exponential", "ard"] = "auto"
    layers: Count | Literal["all"] = "all"


class SGPA(Method):
    """SGPA attention, trained by its own bound."""

    name, title = "sgpa", "SGPA"
    section = SgpaConfig
    ignores = ("kep_layers", "objective")

    def check(self, config: RunConfig) -> None:
        """Refuses more layers than there are."""
        if self.num_layers(config.model) > config.model.depth:
            raise ValueError(
                f"model.sgpa.layers must be at most depth={config.model.depth}; "
                f"got {self.num_layers(config.model)}."
            )

    def num_layers(self, config: ModelConfig) -> int:
        """It has a number of its own."""
        layers = self.settings(config).layers
        return config.depth if layers == "all" else layers

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """SGPA attention, with the kernel of the task."""
        sgpa: SgpaConfig = self.settings(config)
        by_task = "exponential" if num_tokens is None else "ard"
        return SGPAttention(
            config.dim,
            config.num_heads,
            num_inducing=sgpa.num_inducing,
            kernel=by_task if sgpa.kernel == "auto" else sgpa.kernel,
            dropout=config.dropout,
        )
