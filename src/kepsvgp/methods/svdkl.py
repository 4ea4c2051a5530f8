"""SV-DKL: a softmax network first, then the same network with an additive grid GP as its head.

The head is in `kepsvgp.models.svdkl`. The second step trains it together with the network, from
the weights of the first step, by the same loop and objective as everything else; the network
learns more slowly than the head, which is new.

References:
    Wilson et al., 2016, arXiv:1611.00336.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from kepsvgp.config.comparison import differences, other_inputs
from kepsvgp.config.sections import (
    Count,
    Limit,
    ModelConfig,
    Optional,
    RunConfig,
    Section,
)
from kepsvgp.data import Benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.methods.base import Library
from kepsvgp.methods.msp import MSP
from kepsvgp.methods.two_steps import TwoSteps
from kepsvgp.models.blocks import Classifier
from kepsvgp.ops.noise import kept_random_state
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import SecondStep
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


class SVDKL(TwoSteps):
    """Softmax attention under additive GPs on a grid."""

    name, title = "svdkl", "SV-DKL"
    section = SvdklConfig
    library = Library("gpytorch", "GPyTorch", "gp")
    ignores = ("kep_layers", "objective")
    first, beside = MSP, "softmax"
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
        step = super().first_step(config)
        # what concerns the second step alone is no part of the first
        return step and step.model_copy(
            update={"model": step.model.model_copy(update={"svdkl": SvdklConfig()})}
        )

    def check_first(self, first: RunFolder, config: RunConfig, benchmark: Benchmark) -> None:
        """Refuses a run of another network, on other data, or one that has not come to its end."""
        if first.config().method != "msp":
            raise UserError(
                f"model.svdkl.softmax_run must be a run of method 'msp'; {first.path} is one of "
                f"{first.config().method!r}."
            )
        if not is_same_split(first.record()["splits"], benchmark.split_record()):
            raise UserError(
                "model.svdkl.softmax_run must be a run on the same data, split alike; "
                f"{first.path} was trained on others, perhaps on those that are tested here."
            )
        others = [name for name in differences(first.config(), config) if name in _NETWORK]
        others += other_inputs(first.config(), config)
        if others:
            raise UserError(
                "model.svdkl.softmax_run must be a run of the same network with the same inputs; "
                f"{', '.join(others)} of {first.path} differ."
            )
        if not first.is_finished():
            raise UserError(
                f"model.svdkl.softmax_run must be a run that came to its end; {first.path} "
                f"{first.unfinished()}. Continue it with --resume."
            )

    def second_step(self, config: RunConfig, benchmark: Benchmark, first: RunFolder) -> SecondStep:
        """The network of the softmax run, which learns more slowly than the head."""
        epochs = self.epochs(config)
        lengths = {"epochs": epochs, "warmup_epochs": min(config.train.warmup_epochs, epochs / 2)}
        schedule = config.train.model_copy(update=lengths)
        weights = self.starting_weights(config, first.model())
        return SecondStep(schedule, weights, self.settings(config.model).lr_factor)

    def starting_weights(self, config: RunConfig, softmax: Classifier) -> dict[str, Tensor]:
        """The network of the first step, and GPs whose mean is the logits of its head."""
        assert isinstance(softmax.head, nn.Linear)
        with kept_random_state():
            torch.manual_seed(derive_seed(config.seed, "svdkl"))
            head: Any = self.head(config.model, softmax.head.out_features)
        head.start_from(softmax.head)
        # what is familiar to the first step is not to the second
        left = re.compile(r"head\.|.*\.novelty\.")
        network = {n: t for n, t in softmax.state_dict().items() if not left.match(n)}
        return network | {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
