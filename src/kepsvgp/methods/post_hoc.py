"""What is fitted to a trained run: once, with its training and validation data, and kept with it.

Results of, say, temperature scaling are called `temperature` on a softmax run and
`kep+temperature` on a KEP run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.progress import track
from kepsvgp.files import CheckedFolder
from kepsvgp.inference.prediction import Predictor
from kepsvgp.methods.base import Method
from kepsvgp.methods.msp import MSP
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import Checkpoint, weights_about, write_weights

FITTED = "fitted.safetensors"


@dataclass(frozen=True)
class Trained:
    """What a post-hoc method is fitted to: a checkpoint of a run, or of several for an ensemble."""

    runs: tuple[RunFolder, ...]
    benchmark: Benchmark
    checkpoint: Checkpoint
    direct: tuple[Any, ...]
    """The trained models, each asked directly."""
    device: torch.device | None
    console: Console | None

    @property
    def seed(self) -> int:
        """The seed of the (first) run."""
        return self.runs[0].config().seed

    def train(self) -> Iterable[Any]:
        """Batches of the training set, not augmented."""
        return self._batches(self.benchmark.train, "training set")

    def val(self) -> Iterable[Any]:
        """Batches of the validation set."""
        return self._batches(self.benchmark.val, "validation set")

    def _batches(self, examples: Examples, what: str) -> Iterable[Any]:
        size = self.runs[0].config().prediction.batch_size
        return track(batches(examples, size, bucket=True), what, self.console)


class PostHoc(Method):
    """A method on top of a trained one, which has the network and the training."""

    is_post_hoc: ClassVar[bool] = True

    def __init__(self, base: Method | None = None) -> None:
        self._base = base or MSP()
        # on plain softmax attention it goes by its own name, as in the paper
        if not isinstance(self._base, MSP):
            kind = type(self)
            self.name = f"{self._base.name}+{kind.name}"
            self.title = f"{self._base.title} + {kind.title}"

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

    def predictor(
        self,
        run: RunFolder,
        benchmark: Benchmark,
        checkpoint: Checkpoint,
        *,
        members: Sequence[RunFolder] = (),
        device: torch.device | None = None,
        console: Console | None = None,
    ) -> Predictor:
        """Loaded where it is fitted already, else fitted and kept with the run."""
        self.check_installed()
        runs = (run, *members)
        self.check_runs(runs)
        direct = tuple(
            self._base.predictor(each, benchmark, checkpoint, device=device) for each in runs
        )
        trained = Trained(runs, benchmark, checkpoint, direct, device, console)
        folder = run.method_folder(f"{checkpoint}/{type(self).name}")
        stamp = _stamp(runs, checkpoint)
        if read_stamp(folder) == stamp:
            return self.restore(load_file(folder.check(FITTED), str(device or "cpu")), trained)
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
