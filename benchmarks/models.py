"""Whole models: a training step, and a prediction with ten samples."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.contenders import NaiveAttention
from benchmarks.layer import SOFTMAX
from benchmarks.timing import Contest, Limit, Options, contest
from kepsvgp.config.file import load_config
from kepsvgp.inference.calls import call
from kepsvgp.inference.novelty import fit_novelty
from kepsvgp.inference.prediction import predict
from kepsvgp.models import ImageShape, TextShape, build_model
from kepsvgp.models.build import InputShape
from kepsvgp.training.objective import objective

NUM_SAMPLES = 10
VOCABULARY = 30_000
LANDMARK = "model.kep.projection=landmark"
FUSED, PLAIN = SOFTMAX


class Task(NamedTuple):
    """A model of a profile, and a batch for it."""

    name: str
    profile: str
    settings: tuple[str, ...]
    shape: InputShape
    inputs: Any
    labels: Tensor

    @property
    def batch(self) -> tuple[Any, Tensor]:
        """Inputs and labels."""
        return self.inputs, self.labels

    def build(self, method: str, *settings: str) -> nn.Module:
        """The network of a method, by its name in configurations or among the contenders."""
        config = load_config(self.profile, [*self.settings, *settings]).model
        classes = 10 if isinstance(self.shape, ImageShape) else 2
        model = build_model(config, self.shape, classes, "msp" if method in SOFTMAX else method)
        if method == PLAIN:
            blocks: Any = model.blocks
            for block in blocks:
                block.attention = NaiveAttention(config.dim, config.num_heads)
        return model


def vit(options: Options) -> Task:
    """The 7-layer ViT for CIFAR, its last attention the one named."""
    batch, depth = (4, 2) if options.small else (128, 7)
    name = f"{depth}-layer ViT, batch {batch}"
    return _of_images(name, "cifar10", batch, f"model.depth={depth}")


def small_vit(options: Options) -> Task:
    """The ViT of the small CIFAR profile."""
    batch = 4 if options.small else 64
    return _of_images(f"small CIFAR profile, batch {batch}", "cifar10-small", batch)


def imdb(options: Options) -> Task:
    """The 1-layer Transformer for IMDB, sequences full."""
    batch, tokens = (2, 16) if options.small else (32, 512)
    return _of_texts(f"IMDB Transformer, batch {batch}, {tokens} tokens", "imdb", batch, tokens)


def cola(options: Options) -> Task:
    """The 2-layer Transformer for CoLA, both layers of the attention named, sequences full."""
    batch, tokens = (2, 8) if options.small else (32, 32)
    name = f"CoLA Transformer, both layers, batch {batch}, {tokens} tokens"
    # MiniLM's embeddings and its six layers
    return _of_texts(name, "cola", batch, tokens, "model.kep_layers=all", features=(7, 384))


def _of_images(name: str, profile: str, batch: int, *settings: str) -> Task:
    images, labels = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10
    return Task(name, profile, settings, ImageShape(3, 32, 32), images, labels)


def _of_texts(
    name: str,
    profile: str,
    batch: int,
    tokens: int,
    *settings: str,
    features: tuple[int, int] | None = None,
) -> Task:
    inputs = {
        "tokens": torch.randint(VOCABULARY, (batch, tokens)),
        "mask": torch.ones(batch, tokens, dtype=torch.bool),
    }
    if features is not None:
        inputs["features"] = torch.randn(batch, tokens, *features)
    shape = TextShape(VOCABULARY, *(features or ()))
    return Task(name, profile, settings, shape, inputs, torch.arange(batch) % 2)


def train_contests(options: Options) -> Iterator[Contest]:
    """A step of training: forward, objective, backward, Adam."""
    for task, limits in [
        (vit(options), [Limit("kep", 1.0, 0.95), Limit("kep, landmarks", 1.0, 0.95)]),
        (imdb(options), [Limit("kep", 0.6, 0.4), Limit("kep, landmarks", 0.75, 0.6)]),
        (cola(options), [Limit("kep", 1.1, 0.9)]),
        (small_vit(options), [Limit("kep", 1.0, 0.95)]),
    ]:
        models = _models(task)
        if task.profile == "imdb":
            models["sgpa"] = task.build("sgpa")
        steps = {name: train_steps(model, [task.batch]) for name, model in models.items()}
        yield contest(f"training step: {task.name}", steps, options, *limits, baselines=SOFTMAX)


def _models(task: Task) -> dict[str, nn.Module]:
    models = {name: task.build(name) for name in (FUSED, PLAIN, "kep")}
    return models | {"kep, landmarks": task.build("kep", LANDMARK)}


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
    """Ten samples of a KEP model against the one pass of a softmax model, then novelty."""
    for task, limits in [
        (vit(options), [Limit("kep", 1.2, 1.1), Limit("kep, landmarks", 1.6, 1.4)]),
        (imdb(options), [Limit("kep", 1.2, 0.9), Limit("kep, landmarks", 1.5, 1.1)]),
        (cola(options), [Limit("kep", 2.5, 1.5)]),
    ]:
        models = {name: model.eval() for name, model in _models(task).items()}
        models["kep, 10 passes"] = _OneByOne(models["kep"])
        contenders = {name: predicting(model, task.inputs) for name, model in models.items()}
        name = f"prediction, 10 samples against one pass: {task.name}"
        yield contest(name, contenders, options, *limits, baselines=SOFTMAX)
    for task in (vit(options), imdb(options)):
        yield novelty_contest(task.name, lambda task=task: task.build("kep"), task.inputs, options)


def novelty_contest(
    name: str, build: Callable[[], nn.Module], inputs: Any, options: Options
) -> Contest:
    """What the novelty of a batch costs beside its ten samples."""
    model, fitted = build().eval(), build().eval()
    fit_novelty(fitted, [inputs])
    contenders = {"without": predicting(model, inputs), "novelty": predicting(fitted, inputs)}
    limit = Limit("novelty", 1.03, 1.01)
    return contest(
        f"novelty in prediction: {name}", contenders, options, limit, baselines=("without",)
    )


class _OneByOne(nn.Module):
    """A model that hides that it can draw samples in one pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.model(*inputs, **named)


def predicting(
    model: nn.Module, inputs: Any, num_samples: int = NUM_SAMPLES
) -> Callable[[], object]:
    """A prediction; a model that draws nothing is called once, however many samples."""
    return lambda: predict(model, inputs, num_samples=num_samples)
