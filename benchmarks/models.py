"""Whole models: a training step, and a prediction with ten samples."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.timing import Contest, Limit, Options, compare
from kepsvgp.attention.base import PenalisedLayer
from kepsvgp.config.file import load_config
from kepsvgp.inference.calls import call
from kepsvgp.inference.prediction import predict
from kepsvgp.models import ImageShape, TextShape, build_model
from kepsvgp.training.objective import objective

NUM_SAMPLES = 10
VOCABULARY = 30_000
LANDMARK = "model.kep.projection=landmark"


class Task(NamedTuple):
    """A model with the attention to be named, and a batch for it."""

    name: str
    build: Callable[[str], nn.Module]
    inputs: Any
    labels: Tensor

    @property
    def batch(self) -> tuple[Any, Tensor]:
        """Inputs and labels."""
        return self.inputs, self.labels


def vit(options: Options) -> Task:
    """The 7-layer ViT for CIFAR, one layer of the attention named."""
    batch, depth = (4, 2) if options.small else (128, 7)
    config = load_config("cifar10", [LANDMARK, f"model.depth={depth}"]).model
    return Task(
        f"{depth}-layer ViT, batch {batch}",
        lambda kind: build_model(config, ImageShape(3, 32, 32), 10, kind),
        torch.randn(batch, 3, 32, 32),
        torch.randint(10, (batch,)),
    )


def imdb(options: Options) -> Task:
    """The 1-layer Transformer for IMDB, sequences full."""
    batch, tokens = (2, 16) if options.small else (32, 512)
    inputs = {
        "tokens": torch.randint(VOCABULARY, (batch, tokens)),
        "mask": torch.ones(batch, tokens, dtype=torch.bool),
    }
    config = load_config("imdb", [LANDMARK]).model
    return Task(
        f"IMDB Transformer, batch {batch}, {tokens} tokens",
        lambda kind: build_model(config, TextShape(VOCABULARY), 2, kind),
        inputs,
        torch.randint(2, (batch,)),
    )


def train_contests(options: Options) -> Iterator[Contest]:
    """A step of training: forward, objective, backward, Adam."""
    task = vit(options)
    yield _compare_steps(task, ["msp", "kep"], "msp", Limit("kep", 1.0, 0.95), options)
    task = imdb(options)
    yield _compare_steps(task, ["msp", "kep"], "msp", Limit("kep", 0.75, 0.6), options)
    yield _compare_steps(task, ["kep", "sgpa"], "kep", Limit("sgpa", 8.0, at_least=True), options)


def _compare_steps(
    task: Task, kinds: list[str], baseline: str, limit: Limit, options: Options
) -> Contest:
    steps = {kind: train_steps(task.build(kind), [task.batch]) for kind in kinds}
    results = compare(dict(steps), baseline=baseline, rounds=options.rounds)
    return Contest(f"training step: {task.name}", baseline, results, limit)


def train_steps(model: nn.Module, some: Sequence[tuple[Any, Tensor]]) -> Callable[[], None]:
    """A step for each batch of inputs and labels, as the training loop makes it."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        for inputs, labels in some:
            optimizer.zero_grad(set_to_none=True)
            terms = objective(
                call(model, inputs),
                labels,
                model,
                num_train=50_000,
                ksvd_weight=10.0,
                kl_weight=1.0,
            )
            terms.total.backward()
            optimizer.step()

    return run


def predict_contests(options: Options) -> Iterator[Contest]:
    """Ten samples of a KEP model against the one pass of a softmax model."""
    for task, limit in [
        (vit(options), Limit("kep, 10 samples", 1.6, 1.4)),
        (imdb(options), Limit("kep, 10 samples", 1.5, 1.1)),
    ]:
        softmax, kep = task.build("msp").eval(), task.build("kep").eval()
        contenders = {
            "softmax, one pass": _predict(softmax, task.inputs, 1),
            "kep, 10 samples": _predict(kep, task.inputs, NUM_SAMPLES),
            "kep, 10 passes": _predict(_OneByOne(kep), task.inputs, NUM_SAMPLES),
        }
        results = compare(contenders, baseline="softmax, one pass", rounds=options.rounds)
        yield Contest(f"prediction: {task.name}", "softmax, one pass", results, limit)


class _OneByOne(nn.Module):
    """A model that hides that it can draw samples in one pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.model(*inputs, **named)


def _predict(model: nn.Module, inputs: Any, num_samples: int) -> Callable[[], object]:
    assert num_samples == 1 or any(isinstance(m, PenalisedLayer) for m in model.modules())
    return lambda: predict(model, inputs, num_samples=num_samples)
