"""SV-DKL: a softmax network first, then the same network with an additive grid GP as its head.

The head is in `kepsvgp.models.svdkl`. The second step trains it together with the network, from
the weights of the first step and with a smaller learning rate, by the same loop and objective
as everything else.

References:
    Wilson et al., 2016, arXiv:1611.00336.
"""

from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config import RunConfig, SvdklConfig, TrainConfig
from kepsvgp.data import Benchmark
from kepsvgp.errors import UserError
from kepsvgp.models.blocks import Classifier
from kepsvgp.runs import RunFolder, own_randomness
from kepsvgp.training import derive_seed, train


def fit(
    config: RunConfig,
    benchmark: Benchmark,
    out: Path,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> RunFolder:
    """Trains both steps, or the second alone where a softmax run is given.

    The first step is a run of its own, `<out>-softmax`, which is used again if it is there.
    """
    first = _softmax_run(config, benchmark, out, console)
    return train(
        config,
        benchmark,
        out,
        resume=resume,
        console=console,
        initial=starting_weights(config, first.model()),
        schedule=second_step(config),
    )


def starting_weights(config: RunConfig, softmax: Classifier) -> dict[str, Tensor]:
    """The network of the first step, and GPs whose mean is the logits of its head."""
    # needs an extra, which other methods do without
    from kepsvgp.models.svdkl import AdditiveGridGP

    assert isinstance(softmax.head, nn.Linear)
    num_classes, dim = softmax.head.weight.shape
    step = config.model.svdkl
    with own_randomness():
        torch.manual_seed(derive_seed(config.seed, "svdkl"))
        head = AdditiveGridGP(
            dim,
            num_classes,
            num_features=max(step.num_features, num_classes),
            grid_size=step.grid_size,
        )
    head.start_from(softmax.head)
    network = {n: t for n, t in softmax.state_dict().items() if not n.startswith("head.")}
    return network | {f"head.{name}": tensor for name, tensor in head.state_dict().items()}


def second_step(config: RunConfig) -> TrainConfig:
    """The schedule of the second step: its own length and a share of the learning rate."""
    settings, step = config.train, config.model.svdkl
    changes = {
        "epochs": step.epochs or settings.epochs,
        "lr": settings.lr * step.lr_factor,
        "min_lr": settings.min_lr * step.lr_factor,
    }
    changes["warmup_epochs"] = min(settings.warmup_epochs, changes["epochs"] / 2)
    return settings.model_copy(update=changes)


def _softmax_run(
    config: RunConfig, benchmark: Benchmark, out: Path, console: Console | None
) -> RunFolder:
    given = config.model.svdkl.softmax_run
    if given is None:
        # what concerns the second step alone is no part of the first
        model = config.model.model_copy(update={"svdkl": SvdklConfig()})
        first = config.model_copy(update={"method": "msp", "model": model})
        return train(first, benchmark, Path(f"{out}-softmax"), resume=True, console=console)
    run = RunFolder(given)
    if run.config().method != "msp":
        raise UserError(
            f"model.svdkl.softmax_run must be a run of method 'msp'; {given} is one of "
            f"{run.config().method!r}."
        )
    return run
