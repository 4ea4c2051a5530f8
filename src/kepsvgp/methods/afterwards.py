"""What some methods do when their training has come to its end: one more pass for a posterior."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.progress import track
from kepsvgp.models.blocks import Classifier
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import CHECKPOINTS, weights_about
from kepsvgp.training.loop import train
from kepsvgp.training.processes import is_main_process

# fits a model in place, with what makes batches of examples, and shows it
Fit = Callable[[Classifier, Callable[[Examples], Iterator[Any]]], None]


def train_then(
    fit: Fit, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
) -> RunFolder:
    """Trains, then fits the model of every checkpoint; what is fitted already stays."""
    run = train(config, benchmark, out, **options, finish=False)
    if not is_main_process() or run.is_finished():
        return run
    # what was measured before has no posterior in it
    run.forget_results()

    def shown(examples: Examples) -> Iterator[Any]:
        loader = batches(examples, config.prediction.batch_size, bucket=True)
        return track(loader, "posterior", options.get("console"))

    fitted: dict[str, dict[str, Tensor]] = {}
    for checkpoint in CHECKPOINTS:
        about = weights_about(run.weights_file(checkpoint))
        if "fitted" in about:
            continue
        # checkpoints of one epoch are the same
        if about["epoch"] not in fitted:
            model = run.model(checkpoint)
            fit(model, shown)
            fitted[about["epoch"]] = model.state_dict()
        run.write_weights(checkpoint, fitted[about["epoch"]], about | {"fitted": "yes"})
    chosen = config.train.select
    run.write_weights(None, run.weights(chosen), weights_about(run.weights_file(chosen)))
    run.finish()
    return run
