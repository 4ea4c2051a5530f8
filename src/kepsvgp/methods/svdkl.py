"""SV-DKL: a softmax network first, then the same network with an additive grid GP as its head.

The head is in `kepsvgp.models.svdkl`. The second step trains it together with the network, from
the weights of the first step, by the same loop and objective as everything else; the network
learns more slowly than the head, which is new.

References:
    Wilson et al., 2016, arXiv:1611.00336.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config.comparison import differences, other_inputs
from kepsvgp.config.sections import (
    Count,
    Limit,
    ModelConfig,
    Optional,
    RunConfig,
    Section,
    TrainConfig,
)
from kepsvgp.data import Benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.methods.base import Library, Method
from kepsvgp.methods.msp import MSP
from kepsvgp.models.blocks import Classifier
from kepsvgp.ops.noise import kept_random_state
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import make_record
from kepsvgp.training.loop import SecondStep, train
from kepsvgp.training.steps import derive_seed

# what the weights of both steps must have in common
_NETWORK = frozenset(
    f"model.{name}"
    for name in (
        "depth",
        "dim",
        "num_heads",
        "mlp_dim",
        "patch_size",
        "embedding_dim",
        "encoder_layers",
    )
)


class SvdklConfig(Section):
    """SV-DKL's head, and its second step.

    Attributes:
        num_features: Learnt features, each with a GP of its own; at least one for each class.
        grid_size: Grid points of each GP.
        softmax_run: Run folder of the softmax model whose weights the second step starts from;
            None trains one first, beside the run.
        epochs: Epochs of the second step; None for as many as the first had.
        lr_factor: Learning rate of the network in the second step, as a share of the first's; the
            head, which is new, has the whole.
    """

    num_features: Count = 16
    grid_size: int = Field(default=64, ge=8, lt=2**31)
    softmax_run: Annotated[Path | None, Optional] = None
    epochs: Limit = None
    lr_factor: PositiveFloat = 0.1


class SVDKL(Method):
    """Softmax attention under additive GPs on a grid."""

    name, title = "svdkl", "SV-DKL"
    section = SvdklConfig
    library = Library("gpytorch", "GPyTorch", "gp")
    ignores = ("kep_layers", "objective")
    # the second step is taken to be as fast as the first
    timed_as = "msp"

    def head(self, config: ModelConfig, num_classes: int) -> nn.Module:
        """Additive GPs on a grid."""
        # needs an extra, which other methods do without
        from kepsvgp.models.svdkl import AdditiveGridGP

        svdkl: SvdklConfig = self.settings(config)
        return AdditiveGridGP(
            config.dim,
            num_classes,
            num_features=max(svdkl.num_features, num_classes),
            grid_size=svdkl.grid_size,
        )

    def epochs(self, config: RunConfig) -> int:
        """Those of the second step, which may have a length of its own."""
        return self.settings(config.model).epochs or config.train.epochs

    def first_step(self, config: RunConfig) -> RunConfig | None:
        """The softmax run, unless one is given."""
        if self.settings(config.model).softmax_run is not None:
            return None
        # what concerns the second step alone is no part of the first
        model = config.model.model_copy(update={"svdkl": SvdklConfig()})
        return config.model_copy(update={"model": model}).of_method("msp")

    def after(self, config: RunConfig, first: Path) -> RunConfig:
        """The second step from a softmax run."""
        svdkl = self.settings(config.model).model_copy(update={"softmax_run": first})
        return config.model_copy(update={"model": config.model.model_copy(update={"svdkl": svdkl})})

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains both steps, or the second alone where a softmax run is given.

        The first step is a run of its own, `<out>-softmax`, which is used again if it is there.
        """
        self.check_installed()
        RunFolder(out).check_place(
            config, make_record(benchmark), resume=options.get("resume", False)
        )
        first = self._softmax_run(config, benchmark, Path(f"{out}-softmax"), options.get("console"))
        second = SecondStep(
            self.schedule(config),
            self.starting_weights(config, first.model()),
            self.settings(config.model).lr_factor,
        )
        return train(config, benchmark, out, **options, second=second)

    def schedule(self, config: RunConfig) -> TrainConfig:
        """Settings of the loop in the second step."""
        epochs = self.epochs(config)
        warmup = min(config.train.warmup_epochs, epochs / 2)
        return config.train.model_copy(update={"epochs": epochs, "warmup_epochs": warmup})

    def starting_weights(self, config: RunConfig, softmax: Classifier) -> dict[str, Tensor]:
        """The network of the first step, and GPs whose mean is the logits of its head."""
        assert isinstance(softmax.head, nn.Linear)
        with kept_random_state():
            torch.manual_seed(derive_seed(config.seed, "svdkl"))
            head: Any = self.head(config.model, softmax.head.out_features)
        head.start_from(softmax.head)
        network = {n: t for n, t in softmax.state_dict().items() if not n.startswith("head.")}
        return network | {f"head.{name}": tensor for name, tensor in head.state_dict().items()}

    def _softmax_run(
        self, config: RunConfig, benchmark: Benchmark, out: Path, console: Console | None
    ) -> RunFolder:
        first = self.first_step(config)
        if first is not None:
            return MSP().train(first, benchmark, out, resume=True, console=console)
        return _checked(RunFolder(self.settings(config.model).softmax_run), config, benchmark)


def _checked(run: RunFolder, config: RunConfig, benchmark: Benchmark) -> RunFolder:
    """A softmax run that is given, if it can be the first step."""
    given = run.path
    if run.config().method != "msp":
        raise UserError(
            f"model.svdkl.softmax_run must be a run of method 'msp'; {given} is one of "
            f"{run.config().method!r}."
        )
    if not is_same_split(run.record()["splits"], benchmark.split_record()):
        raise UserError(
            f"model.svdkl.softmax_run must be a run on the same data, split alike; {given} was "
            "trained on others, perhaps on those that are tested here."
        )
    others = [name for name in differences(run.config(), config) if name in _NETWORK]
    others += other_inputs(run.config(), config)
    if others:
        raise UserError(
            "model.svdkl.softmax_run must be a run of the same network with the same inputs; "
            f"{', '.join(others)} of {given} differ."
        )
    if not run.is_finished():
        raise UserError(
            f"model.svdkl.softmax_run must be a run that came to its end; {given} "
            f"{run.unfinished()}. Continue it with --resume."
        )
    return run
