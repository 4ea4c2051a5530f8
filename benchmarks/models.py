"""Whole models: a training step, and a prediction with ten samples."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.contenders import NaiveAttention
from benchmarks.layer import SOFTMAX
from benchmarks.timing import Contest, Limit, Options, contest
from kepsvgp.config.file import load_config
from kepsvgp.inference.calls import call
from kepsvgp.inference.novelty import FEWEST, fit_novelty
from kepsvgp.inference.prediction import predict
from kepsvgp.models import ImageShape, TextShape, build_model
from kepsvgp.models.build import InputShape
from kepsvgp.training.objective import objective

NUM_SAMPLES = 10
VOCABULARY = 30_000
LANDMARK = "model.kep.projection=landmark"
PLAIN = SOFTMAX[1]


class Task(NamedTuple):
    """A model of a profile, and a batch for it."""

    name: str
    sizes: str
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
    return _of_images(f"ViT-{depth}", "cifar10", batch, f"model.depth={depth}")


def small_vit(options: Options) -> Task:
    """The ViT of the small CIFAR profile."""
    batch = 4 if options.small else 64
    return _of_images("small CIFAR profile", "cifar10-small", batch)


def imdb(options: Options) -> Task:
    """The 1-layer Transformer for IMDB, sequences full."""
    batch, tokens = (2, 16) if options.small else (32, 512)
    return _of_texts("IMDB", "imdb", batch, tokens)


def cola(options: Options) -> Task:
    """The 2-layer Transformer for CoLA, both layers of the attention named, sequences full."""
    batch, tokens = (2, 8) if options.small else (32, 32)
    # MiniLM's embeddings and its six layers
    features = (7, 384)
    name = "CoLA, both layers"
    return _of_texts(name, "cola", batch, tokens, "model.kep_layers=all", features=features)


def _of_images(name: str, profile: str, batch: int, *settings: str) -> Task:
    images, labels = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10
    shape = ImageShape(3, 32, 32)
    return Task(name, f"batch {batch}", profile, settings, shape, images, labels)


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
    sizes = f"batch {batch}, {tokens} tokens"
    return Task(name, sizes, profile, settings, shape, inputs, torch.arange(batch) % 2)


def train_contests(options: Options) -> Iterator[Contest]:
    """A step of training: forward, objective, backward, Adam."""
    for task, limits in [
        (vit(options), [Limit("KEP", 1.0, 0.95), Limit("KEP, landmarks", 1.0, 0.95)]),
        (imdb(options), [Limit("KEP", 0.6, 0.4), Limit("KEP, landmarks", 0.75, 0.6)]),
        (cola(options), [Limit("KEP", 1.1, 0.9)]),
        (small_vit(options), [Limit("KEP", 1.0, 0.95)]),
    ]:
        models = _models(task)
        if task.profile == "imdb":
            models["SGPA"] = task.build("sgpa")
        steps = {name: train_steps(model, [task.batch]) for name, model in models.items()}
        name = f"training step, {task.name}"
        yield contest(name, steps, options, *limits, baselines=SOFTMAX, sizes=task.sizes)


def _models(task: Task) -> dict[str, nn.Module]:
    models = {name: task.build(name) for name in SOFTMAX}
    return models | {"KEP": task.build("kep"), "KEP, landmarks": task.build("kep", LANDMARK)}


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
    for task, limits in [
        (vit(options), [Limit("KEP", 1.2, 1.1), Limit("KEP, landmarks", 1.6, 1.4)]),
        (imdb(options), [Limit("KEP", 1.2, 0.9), Limit("KEP, landmarks", 1.5, 1.1)]),
        (cola(options), [Limit("KEP", 2.5, 1.5)]),
    ]:
        models = {name: model.eval() for name, model in _models(task).items()}
        contenders = {name: predicting(model, task.inputs) for name, model in models.items()}
        name = f"ten samples, {task.name}"
        yield contest(name, contenders, options, *limits, baselines=SOFTMAX, sizes=task.sizes)


def novelty_contests(options: Options) -> Iterator[Contest]:
    """Ten samples with novelty against ten without, and the pass that fits it against theirs."""
    for task in (vit(options), imdb(options)):
        yield novelty_contest(task.name, lambda task=task: task.build("kep"), task.inputs, options)
        yield fitting_contest(task, options)


def novelty_contest(
    name: str, build: Callable[[], nn.Module], inputs: Any, options: Options
) -> Contest:
    """What the novelty of a batch costs beside its ten samples."""
    model, fitted = build().eval(), build().eval()
    fit_novelty(fitted, [inputs])
    contenders = {"without": predicting(model, inputs), "novelty": predicting(fitted, inputs)}
    limit = Limit("novelty", 1.03, 1.01)
    return contest(
        f"novelty in prediction, {name}", contenders, options, limit, baselines=("without",)
    )


def fitting_contest(task: Task, options: Options, batches: int = 8) -> Contest:
    """What `fit_novelty` costs beside predicting the same batches once."""
    model = task.build("kep").eval()
    evaluate = predicting(task.build("kep").eval(), task.inputs)
    shown = batches * [task.inputs]
    # as few held-out examples as will do
    held_out = (FEWEST // len(task.labels) + 1) * [task.inputs]
    contenders = {
        "evaluation": lambda: [evaluate() for _ in shown],
        "fit_novelty": lambda: fit_novelty(model, shown, calibration=held_out),
    }
    limit = Limit("fit_novelty", 1.0)
    return contest(
        f"fitting novelty, {task.name}", contenders, options, limit, baselines=("evaluation",)
    )


def predicting(
    model: nn.Module, inputs: Any, method: Literal["samples", "linear"] = "samples"
) -> Callable[[], object]:
    """A prediction; a model that draws nothing is called once, however many samples."""
    return lambda: predict(model, inputs, num_samples=NUM_SAMPLES, method=method)
