"""What surrounds the model: making batches while training, and the evaluation of a whole set."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.models import NUM_SAMPLES, train_steps, vit
from benchmarks.timing import Contest, Figures, Options, compare
from kepsvgp.data import batches
from kepsvgp.data.augment import CropFlip
from kepsvgp.data.examples import ImageExamples, Normalisation, image_examples
from kepsvgp.inference.prediction import Prediction, predict, predict_batches
from kepsvgp.metrics import all_metrics


def measurements(options: Options) -> Iterator[Contest | Figures]:
    """A batch of augmented images beside a step, and a prediction of 10,000 images in its parts."""
    task = vit(options)
    examples = _images(100 if options.small else 10_000)
    loader = batches(
        examples, len(task.labels), shuffle=True, augment=CropFlip(), drop_last=True, prefetch=0
    )
    endless = _forever(loader)
    results = compare(
        {
            "training step": train_steps(task.build("kep"), [task.batch]),
            "batch": lambda: next(endless),
        },
        baseline="training step",
        rounds=min(options.rounds, 5),
    )
    yield Contest(f"data: augmented images for {task.name}", "training step", results)
    yield evaluation(task.build("kep").eval(), examples, len(task.labels))


def evaluation(model: nn.Module, examples: ImageExamples, batch_size: int) -> Figures:
    """Seconds for a set, once: in the model, around it, and for all metrics."""
    timed = _Timed(model)
    start = time.perf_counter()
    whole = predict_batches(timed, batches(examples, batch_size))
    predicted = time.perf_counter()
    all_metrics(whole.probs, examples.labels)
    measured = time.perf_counter()
    values = {
        "seconds in the model": timed.seconds,
        "seconds around it": predicted - start - timed.seconds,
        "seconds for all metrics": measured - predicted,
    }
    return Figures(f"evaluation of {len(examples):,} images, {NUM_SAMPLES} samples", values)


class _Timed:
    """A predictor that adds up the time it takes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seconds = 0.0

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        start = time.perf_counter()
        result = predict(self.model, inputs, num_samples=NUM_SAMPLES, generator=generator)
        self.seconds += time.perf_counter() - start
        return result


def _images(number: int) -> ImageExamples:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (number, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (number,), generator=generator)
    return image_examples(pixels, labels, Normalisation.of(pixels))


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
