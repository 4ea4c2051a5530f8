"""SNGP: a network with bounded last layers and a GP head, whose posterior is fitted at the end.

The head and the bounds are in `kepsvgp.models.sngp`; they are trained like any other network.
What is left then is one pass over the training set for the covariance of the head's weights,
for every checkpoint of the run.

References:
    Liu et al., 2020, arXiv:2006.10108.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat
from torch import nn

from kepsvgp.config.sections import Count, ModelConfig, RunConfig, Section
from kepsvgp.data import Benchmark, Examples
from kepsvgp.inference.calls import to_device
from kepsvgp.inference.pooled import pooled
from kepsvgp.methods.afterwards import train_then
from kepsvgp.methods.base import Method
from kepsvgp.models.blocks import Classifier
from kepsvgp.models.build import InputShape
from kepsvgp.models.sngp import RandomFeatureGP, bound_spectra
from kepsvgp.runs.folder import RunFolder


class SngpConfig(Section):
    """SNGP's last layers.

    Attributes:
        num_features: Random features of the head.
        lengthscale: Of its kernel, in units of the norm of the pooled features.
        spectral_bound: Largest singular value of the linear maps of the last block.
    """

    num_features: Count = 512
    lengthscale: PositiveFloat = 1.0
    spectral_bound: PositiveFloat = 0.95


class SNGP(Method):
    """Softmax attention with bounded last layers under a head of random features."""

    name, title = "sngp", "SNGP"
    section = SngpConfig
    ignores = ("kep_layers", "objective")

    def head(self, config: ModelConfig, num_classes: int) -> nn.Module:
        """Random features of a GP."""
        sngp: SngpConfig = self.settings(config)
        return RandomFeatureGP(
            config.dim,
            num_classes,
            num_features=sngp.num_features,
            lengthscale=sngp.lengthscale,
        )

    def network(self, config: ModelConfig, shape: InputShape, num_classes: int) -> Classifier:
        """The plain network with this head, its last block bounded."""
        model = super().network(config, shape, num_classes)
        blocks: Any = model.blocks
        bound_spectra(blocks[-1], self.settings(config).spectral_bound)
        return model

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains the network, then fits the posterior of every checkpoint."""

        def fit(model: Classifier, batches: Callable[[Examples], Iterable[Any]]) -> None:
            assert isinstance(model.head, RandomFeatureGP)
            device = model.head.weight.device
            given = (to_device(inputs, device) for inputs, _, _ in batches(benchmark.train))
            model.head.fit(pooled(model, inputs)[0] for inputs in given)

        return train_then(fit, config, benchmark, out, **options)
