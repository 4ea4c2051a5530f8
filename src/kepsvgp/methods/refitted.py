"""KEP-SVGP, refitted: the mean that training found, with a posterior fitted around it afterwards.

The covariance of q(v) is that of `kepsvgp.inference.posterior.fit_posterior`: Gauss–Newton on the
training set, with a prior precision that the validation NLL chooses.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from kepsvgp.data import Benchmark
from kepsvgp.inference.linear import kep_layers
from kepsvgp.inference.posterior import fit_posterior
from kepsvgp.methods.base import Direct, Method
from kepsvgp.methods.post_hoc import PostHoc, Trained
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import weights_about


class Refitted(PostHoc):
    """The posterior of a trained KEP network, fitted again."""

    name, title = "refitted", "Refitted posterior"

    def __init__(self, base: Method | None = None) -> None:
        super().__init__(base)
        if self.name != type(self).name:
            self.title = f"{self.trained.title}, refitted"

    def fit(self, trained: Trained) -> Direct:
        """Fits the spread to the training set, and its prior to the validation set."""
        return fit(trained.direct[0], trained.train(), trained.val(), device=trained.device)

    def kept(self, fitted: Direct) -> dict[str, Tensor]:
        """The factors of the covariances."""
        return {str(i): layer.v_tril_raw for i, layer in enumerate(kep_layers(fitted.model))}

    def restore(self, kept: Mapping[str, Tensor], trained: Trained) -> Direct:
        """The posterior that was fitted."""
        (direct,) = trained.direct
        for i, layer in enumerate(kep_layers(direct.model)):
            layer.load_state_dict({"v_tril_raw": kept[str(i)]}, strict=False)
        return direct


def fit(
    direct: Direct,
    train_batches: Iterable[Any],
    val_batches: Iterable[Any],
    *,
    device: torch.device | None = None,
) -> Direct:
    """Fits the posterior of a model, in place."""
    fit_posterior(direct.model, train_batches, validation=val_batches, device=device)
    return direct


def install(run: RunFolder, method: Refitted, benchmark: Benchmark) -> None:
    """Makes the refitted posterior the one that `model.safetensors` of a run has."""
    selected = run.config().train.select
    predictor = method.predictor(run, benchmark, selected)
    assert isinstance(predictor, Direct)
    about = weights_about(run.weights_file(selected)) | {"method": method.name}
    run.write_weights(None, predictor.model.state_dict(), about)
