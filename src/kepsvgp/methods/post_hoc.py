"""What is fitted to a trained run: once, with its training and validation data, and kept with it.

Results of, say, temperature scaling are called `temperature` on a softmax run and
`kep+temperature` on a KEP run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from safetensors.torch import load_file
from torch import Tensor

from kepsvgp.files import CheckedFolder
from kepsvgp.inference.prediction import Predictor
from kepsvgp.methods.base import Method
from kepsvgp.methods.base import Trained as Trained
from kepsvgp.methods.msp import MSP
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import Checkpoint, weights_about, write_weights

FITTED = "fitted.safetensors"


class PostHoc(Method):
    """A method on top of a trained one, which has the network and the training."""

    is_post_hoc: ClassVar[bool] = True
    title_on: ClassVar[str] = "{} + {}"
    """What people call it on another method, made of both titles."""

    def __init__(self, base: Method | None = None) -> None:
        self._base = base or MSP()
        # on plain softmax attention it goes by its own name, as in the paper
        if not isinstance(self._base, MSP):
            kind = type(self)
            self.name = f"{self._base.name}+{kind.name}"
            self.title = self.title_on.format(self._base.title, kind.title)

    @property
    def trained(self) -> Method:
        """The method that it is fitted to."""
        return self._base

    def fit(self, trained: Trained) -> Any:
        """A predictor; the test set is not looked at."""
        raise NotImplementedError

    def kept(self, fitted: Any) -> dict[str, Tensor]:
        """What of a predictor is kept with the run; nothing, if there is nothing to fit."""
        return {}

    def restore(self, kept: Mapping[str, Tensor], trained: Trained) -> Any:
        """The predictor of which this was kept, for the same models."""
        return self.fit(trained)

    def answer(self, trained: Trained) -> Predictor:
        """Loaded where it is fitted already, else fitted and kept with the run."""
        runs, checkpoint, device = trained.runs, trained.checkpoint, trained.device
        base = partial(self._base.predictor, benchmark=trained.benchmark, checkpoint=checkpoint)
        trained = replace(trained, direct=tuple(base(each, device=device) for each in runs))
        run, stamp = runs[0], _stamp(runs, checkpoint)
        folder = run.method_folder(f"{checkpoint}/{type(self).name}")
        if read_stamp(folder) == stamp:
            return self.restore(load_file(folder.check(FITTED)), trained)
        # what another ensemble or other weights said is no longer the method's
        run.forget_method(checkpoint, self.name)
        fitted = self.fit(trained)
        write_weights(folder, FITTED, self.kept(fitted), {"stamp": json.dumps(stamp)})
        return fitted


def read_stamp(folder: CheckedFolder) -> dict[str, Any] | None:
    """What the method that is kept in a folder was fitted to; None if there is none."""
    if not folder.has(FITTED):
        return None
    return json.loads(weights_about(folder.check(FITTED))["stamp"])


def _stamp(runs: Sequence[RunFolder], checkpoint: Checkpoint) -> dict[str, Any]:
    """What a fitted method depends on: the weights of its runs, and how they are asked."""
    return {
        "weights": [run.files.checksum(run.weights_name(checkpoint)) for run in runs],
        "prediction": runs[0].config().prediction.model_dump(),
    }
