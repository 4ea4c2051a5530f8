"""SNGP: a network with bounded last layers and a GP head, whose posterior is fitted at the end.

The head and the bounds are in `kepsvgp.models.sngp`; they are trained like any other network.
What is left then is one pass over the training set for the covariance of the head's weights,
for every checkpoint of the run.

References:
    Liu et al., 2020, arXiv:2006.10108.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveFloat
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config.sections import Count, ModelConfig, RunConfig, Section
from kepsvgp.data import Benchmark, batches
from kepsvgp.data.progress import track
from kepsvgp.inference.prediction import to_device
from kepsvgp.methods.base import Method
from kepsvgp.methods.pooled import pooled
from kepsvgp.models.blocks import Classifier
from kepsvgp.models.build import InputShape
from kepsvgp.models.sngp import RandomFeatureGP, bound_spectra
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import CHECKPOINTS, Checkpoint, weights_about
from kepsvgp.training.loop import is_main_process, train


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
        run = train(config, benchmark, out, **options, finish=False)
        if is_main_process():
            if not run.is_finished():
                # what was measured before has no posterior in it
                run.forget_results()
            for checkpoint in CHECKPOINTS:
                _finish(run, benchmark, checkpoint, options.get("console"))
            # what was selected is one of them
            chosen = config.train.select
            about = weights_about(run.weights_file(chosen))
            run.write_weights(None, run.weights(chosen), about)
            run.finish()
        return run


def fit_posterior(
    model: Classifier, train_batches: Iterable[Any], *, device: torch.device | None = None
) -> None:
    """Gives the head of a trained model its posterior, in place."""

    def features() -> Iterator[tuple[Tensor, None]]:
        for inputs, _, _ in train_batches:
            yield pooled(model, to_device(inputs, device))[0], None

    assert isinstance(model.head, RandomFeatureGP)
    model.head.fit(features())


def _finish(
    run: RunFolder, benchmark: Benchmark, checkpoint: Checkpoint, console: Console | None
) -> None:
    model = run.model(checkpoint)
    if isinstance(model.head, RandomFeatureGP) and model.head.is_fitted:
        return
    loader = batches(benchmark.train, run.config().prediction.batch_size, bucket=True)
    name = f"posterior of checkpoint {checkpoint}"
    shown = loader if console is None else track(loader, name, total=len(loader), console=console)
    fit_posterior(model, shown)
    about = weights_about(run.weights_file(checkpoint))
    run.write_weights(checkpoint, model.state_dict(), about)
