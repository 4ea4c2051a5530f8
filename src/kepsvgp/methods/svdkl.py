"""SV-DKL: a softmax network first, then the same network with an additive grid GP as its head.

The head is in `kepsvgp.models.svdkl`. The second step trains it together with the network, from
the weights of the first step, by the same loop and objective as everything else; the network
learns more slowly than the head, which is new.

References:
    Wilson et al., 2016, arXiv:1611.00336.
"""

from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config.comparison import differences, other_inputs
from kepsvgp.config.sections import RunConfig, SvdklConfig, TrainConfig
from kepsvgp.data import Benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.models.blocks import Classifier
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import make_record
from kepsvgp.training.loop import derive_seed, train

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
    RunFolder(out).check_place(config, make_record(benchmark), resume=resume)
    first = _softmax_run(config, benchmark, out, console)
    return train(
        config,
        benchmark,
        out,
        resume=resume,
        console=console,
        initial=starting_weights(config, first.model()),
        schedule=second_step(config),
        network_lr=config.model.svdkl.lr_factor,
    )


def starting_weights(config: RunConfig, softmax: Classifier) -> dict[str, Tensor]:
    """The network of the first step, and GPs whose mean is the logits of its head."""
    # needs an extra, which other methods do without
    from kepsvgp.models.svdkl import AdditiveGridGP

    assert isinstance(softmax.head, nn.Linear)
    num_classes, dim = softmax.head.weight.shape
    step = config.model.svdkl
    with torch.random.fork_rng(devices=[]):
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
    """The schedule of the second step, which may have a length of its own."""
    settings = config.train
    epochs = config.model.svdkl.epochs or settings.epochs
    warmup = min(settings.warmup_epochs, epochs / 2)
    return settings.model_copy(update={"epochs": epochs, "warmup_epochs": warmup})


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
