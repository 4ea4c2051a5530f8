"""What follows the last epoch: some methods fit a posterior, and all learn what is familiar."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from kepsvgp.attention.novelty import last_attention
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.progress import track
from kepsvgp.inference.novelty import FEWEST, fit_novelty
from kepsvgp.models.blocks import Classifier
from kepsvgp.ops.device import find_device
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import CHECKPOINTS, weights_about
from kepsvgp.training.loop import train
from kepsvgp.training.processes import is_main_process

# fits a model in place, with what makes batches of examples, and shows it
Fit = Callable[[Classifier, Callable[[Examples], Iterator[Any]]], None]


def train_then(
    fit: Fit | None, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
) -> RunFolder:
    """Trains, then fits the model of every checkpoint; what is fitted already stays.

    `fit` is what the method has to add, before the model is shown what is familiar.
    """
    run = train(config, benchmark, out, **options, finish=False)
    if not is_main_process() or run.is_finished():
        return run
    # what was measured before has no posterior in it
    run.forget_results()

    def shown(examples: Examples) -> Iterator[Any]:
        loader = batches(examples, config.prediction.batch_size, bucket=True)
        return track(loader, "last pass", options.get("console"))

    device = find_device(config.train.device, is_binding=False)
    fitted: dict[str, dict[str, Tensor]] = {}
    for checkpoint in CHECKPOINTS:
        about = weights_about(run.weights_file(checkpoint))
        if "fitted" in about:
            continue
        # checkpoints of one epoch are the same
        if about["epoch"] not in fitted:
            model = run.model(checkpoint).to(device)
            if fit is not None:
                fit(model, shown)
            show_familiar(model, config, benchmark, shown(benchmark.train))
            fitted[about["epoch"]] = model.state_dict()
        run.write_weights(checkpoint, fitted[about["epoch"]], about | {"fitted": "yes"})
    chosen = config.train.select
    run.write_weights(None, run.weights(chosen), weights_about(run.weights_file(chosen)))
    run.finish()
    return run


def show_familiar(
    model: Classifier,
    config: RunConfig,
    benchmark: Benchmark,
    train: Iterable[Any],
) -> None:
    """Fits the novelty of a model to its training set, and the p-values to its validation set.

    The latter is shown in its own order, so that `gives_scale` says what else rules may use of it.
    """
    if last_attention(model) is None:
        return
    device = find_device(config.train.device, is_binding=False)
    val = benchmark.val
    fit_novelty(
        model.to(device), train,
        calibration=batches(val, config.prediction.batch_size) if len(val) >= FEWEST else None,
        num_samples=config.prediction.num_samples, seed=config.seed, device=device,
    )  # fmt: skip
