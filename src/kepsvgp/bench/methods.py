"""What every method costs on real data: an epoch of training, and the prediction of a set.

All methods take turns on the same batches in one process, so that whatever else the machine
does slows all of them alike; ratios to the softmax model are what counts. An epoch is timed by
some of its steps, forward, backward and optimizer. Weights are those of the seed: they change
no cost. The data are CoLA with the paper's network and frozen MiniLM features, or, where CoLA
is not at hand, digits.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, get_args

import numpy as np
import torch
from rich.table import Table
from torch import nn

from kepsvgp.bench.options import Options
from kepsvgp.bench.timing import Result, compare
from kepsvgp.config.sections import (
    PARTS,
    DataConfig,
    KepConfig,
    Method,
    ModelConfig,
    RunConfig,
    SgpaConfig,
    TrainConfig,
)
from kepsvgp.data import Batch, Benchmark, batches, load_benchmark
from kepsvgp.data.sets import cola
from kepsvgp.data.store import data_root
from kepsvgp.inference.prediction import Predictor, call, predict_batches
from kepsvgp.methods import ensemble, kfllla, mc_dropout, msp, sngp, temperature
from kepsvgp.models import Classifier, build_model
from kepsvgp.runs.folder import input_shape
from kepsvgp.training.objective import loss

BASELINE: Method = "msp"
ENSEMBLE_SIZE = 5

COLA = RunConfig(
    data=DataConfig(name="cola", encoder="minilm", max_length=100),
    model=ModelConfig(
        depth=2, dim=256, num_heads=4, mlp_dim=256,
        kep=KepConfig(rank=5, projection="landmark"),
        # its paper's setting for CoLA
        sgpa=SgpaConfig(num_inducing=5, layers="all"),
    ),
    train=TrainConfig(batch_size=32),
)  # fmt: skip
DIGITS = RunConfig(
    data=DataConfig(name="digits", train_limit=320, test_limit=100),
    model=ModelConfig(
        depth=2, dim=32, num_heads=4, mlp_dim=32, patch_size=2,
        kep=KepConfig(rank=5, projection="landmark"), sgpa=SgpaConfig(num_inducing=8),
    ),
    train=TrainConfig(batch_size=32),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """What one method costs, in seconds and as a ratio to the baseline."""

    seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Training and prediction of all methods."""

    name: str
    rounds: int
    num_samples: int
    epoch: Mapping[str, Cost]
    """One epoch of training, for the methods that train."""
    prediction: Mapping[str, Cost]
    """A thousand predictions."""
    sgpa_to_kep: float
    """Training with SGPA by training with KEP, the lower quartile over the rounds."""

    @property
    def passed(self) -> bool:
        """Whether SGPA is slower to train than KEP in at least three rounds of four."""
        return self.sgpa_to_kep > 1.0

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        return asdict(self) | {"baseline": BASELINE, "passed": self.passed}

    def table(self) -> Table:
        """A line for each method."""
        table = Table("", "epoch / s", "ratio", "1000 predictions / s", "ratio")
        table.title, table.title_justify = self.name, "left"
        for name, predicted in self.prediction.items():
            trained = self.epoch.get(name)
            table.add_row(
                name,
                "" if trained is None else f"{trained.seconds:.2f}",
                "" if trained is None else f"{trained.ratio:.2f}",
                f"{predicted.seconds:.3f}",
                f"{predicted.ratio:.2f}",
            )
        table.caption = (
            f"{self.rounds} rounds, {self.num_samples} samples. Post-hoc methods train what they "
            f"stand on, svdkl a softmax model before, an ensemble {ENSEMBLE_SIZE} models. "
            f"sgpa / kep in training: must be > 1, lower quartile {self.sgpa_to_kep:.2f}"
        )
        return table


def measurements(options: Options) -> Iterator[Costs]:
    """All methods on CoLA, or on digits where it is not at hand or a trial is all that is asked."""
    if options.small:
        yield measure(DIGITS, "methods on digits", options, steps=2)
    elif (data_root(COLA.data.root) / cola.FOLDER).is_dir():
        yield measure(COLA, "methods on CoLA", options)
    else:
        yield measure(DIGITS, "methods on digits, as CoLA is not at hand", options)


def measure(
    config: RunConfig,
    name: str,
    options: Options,
    *,
    steps: int = 10,
) -> Costs:
    """Seconds and ratios of all methods.

    Args:
        config: The network and its batches; the method in it is left aside.
        name: What the result is called.
        options: Number of rounds.
        steps: Training steps, and at most so many batches of the test set, in one turn.
    """
    benchmark = load_benchmark(config.data)
    models = {method: _build(method, config, benchmark) for method in get_args(Method)}
    size, num_train = config.train.batch_size, len(benchmark.train)
    order = torch.Generator().manual_seed(config.seed)
    loader = batches(benchmark.train, size, shuffle=True, generator=order, drop_last=True)
    train_batches = list(islice(loader, steps))
    training = _take_turns(
        {
            method: _training_turn(model, train_batches, config, num_train)
            for method, model in models.items()
        },
        options,
    )
    test_batches = list(islice(batches(benchmark.test, config.prediction.batch_size), steps))
    prediction = _take_turns(
        {
            method: _prediction_turn(predictor, test_batches)
            for method, predictor in _predictors(models, train_batches, config).items()
        },
        options,
    )
    sgpa_to_kep = [
        ours / theirs
        for ours, theirs in zip(training["sgpa"].seconds, training["kep"].seconds, strict=True)
    ]
    num_test = sum(len(batch.labels) for batch in test_batches)
    return Costs(
        name,
        options.rounds,
        config.prediction.num_samples,
        _costs(training, num_train // size / len(train_batches)),
        _costs(prediction, 1000 / num_test),
        float(np.quantile(sgpa_to_kep, 0.25)),
    )


def _build(method: Method, config: RunConfig, benchmark: Benchmark) -> Classifier:
    torch.manual_seed(config.seed)
    parts = PARTS[method]
    return build_model(
        config.model,
        input_shape(benchmark),
        len(benchmark.classes),
        attention=parts.attention,
        head=parts.head,
    )


def _training_turn(
    model: nn.Module, some: list[Batch], config: RunConfig, num_train: int
) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.lr, fused=True)

    def turn() -> None:
        model.train()
        for batch in some:
            terms = loss(
                call(model, batch.inputs),
                batch.labels,
                model,
                num_train=num_train,
                ksvd_weight=config.objective.ksvd_weight,
                kl_weight=config.kl_weight,
            )
            optimizer.zero_grad()
            terms.total.backward()
            optimizer.step()

    return turn


def _predictors(
    models: Mapping[Method, Classifier], train_batches: list[Batch], config: RunConfig
) -> dict[str, Predictor]:
    """Every method, fitted with the batches at hand where it needs fitting."""
    samples = config.prediction.num_samples
    sngp.fit_posterior(models["sngp"], train_batches)
    direct = {name: msp.fit(model, num_samples=samples) for name, model in models.items()}

    def laplace(name: Method) -> Predictor:
        return kfllla.fit(
            models[name], train_batches, train_batches, num_samples=samples, prior_precision=1.0
        )

    def five(name: Method) -> Predictor:
        return ensemble.fit([direct[name]] * ENSEMBLE_SIZE, [name] * ENSEMBLE_SIZE)

    return {
        **direct,
        "temperature": temperature.TemperatureScaling(direct["msp"], 1.5),
        "mc_dropout": mc_dropout.fit(models["msp"], num_samples=samples),
        "kfllla": laplace("msp"),
        "ensemble": five("msp"),
        "kep+temperature": temperature.TemperatureScaling(direct["kep"], 1.5),
        "kep+kfllla": laplace("kep"),
        "kep+ensemble": five("kep"),
    }


def _prediction_turn(predictor: Predictor, some: list[Batch]) -> Callable[[], object]:
    return lambda: predict_batches(predictor, some)


def _take_turns(turns: Mapping[str, Callable[[], object]], options: Options) -> dict[str, Result]:
    return compare(turns, baseline=BASELINE, rounds=options.rounds, turn=0.0, warmup=1)


def _costs(results: Mapping[str, Result], factor: float) -> dict[str, Cost]:
    return {
        name: Cost(factor * statistics.median(result.seconds), result.ratio)
        for name, result in results.items()
    }
