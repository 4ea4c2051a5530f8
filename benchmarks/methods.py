"""What every method costs on real data: steps of training, and the prediction of a set.

Weights are those of the seed: they change no cost. The data are CoLA with the paper's network and
frozen MiniLM features, or, where CoLA is not at hand, digits. Post-hoc methods train what they
stand on, and an ensemble trains as many models as it has.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import torch

from benchmarks.models import train_steps
from benchmarks.timing import Contest, Options, compare
from kepsvgp.config.file import parse_config
from kepsvgp.config.plugins import TRAINED
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Batch, Benchmark, batches, load_benchmark
from kepsvgp.data.sets import cola
from kepsvgp.data.store import data_root
from kepsvgp.inference.pooled import pooled
from kepsvgp.inference.prediction import Predictor, predict_batches
from kepsvgp.methods import ensemble, kfllla, mc_dropout, temperature
from kepsvgp.methods.base import Direct
from kepsvgp.models import Classifier, build_model
from kepsvgp.runs.record import input_shape

BASELINE = "msp"
ENSEMBLE_SIZE = 5

COLA = parse_config({
    "data": {"name": "cola", "encoder": "minilm", "max_length": 100},
    "model": {
        "depth": 2, "dim": 256, "num_heads": 4, "mlp_dim": 256,
        "kep": {"rank": 5, "projection": "landmark"},
        # its paper's setting for CoLA
        "sgpa": {"num_inducing": 5, "layers": "all"},
    },
    "train": {"batch_size": 32},
})  # fmt: skip
DIGITS = parse_config({
    "data": {"name": "digits", "train_limit": 320, "test_limit": 100},
    "model": {
        "depth": 2, "dim": 32, "num_heads": 4, "mlp_dim": 32, "patch_size": 2,
        "kep": {"rank": 5, "projection": "landmark"}, "sgpa": {"num_inducing": 8},
    },
    "train": {"batch_size": 32},
})  # fmt: skip


def measurements(options: Options) -> Iterator[Contest]:
    """All methods, in ten training steps and as many batches of the test set for a turn."""
    steps = 2 if options.small else 10
    at_hand = (data_root(COLA.data.root) / cola.FOLDER).is_dir()
    config = DIGITS if options.small or not at_hand else COLA
    benchmark, size = load_benchmark(config.data), config.train.batch_size
    models = {method: _build(method, config, benchmark) for method in TRAINED}
    order = torch.Generator().manual_seed(config.seed)
    loader = batches(benchmark.train, size, shuffle=True, generator=order, drop_last=True)
    train = list(islice(loader, steps))
    pairs = [(batch.inputs, batch.labels) for batch in train]
    turns = {name: train_steps(model, pairs) for name, model in models.items()}
    where = f"on {config.data.name}"
    yield _contest(f"all methods, training {where}, {steps} steps of {size}", dict(turns), options)

    test = list(islice(batches(benchmark.test, config.prediction.batch_size), steps))
    predictors = _predictors(models, train, config.prediction.num_samples)
    number = sum(len(batch.labels) for batch in test)
    asked = {name: _prediction(predictor, test) for name, predictor in predictors.items()}
    yield _contest(f"all methods, prediction {where}, {number:,} examples", asked, options)


def _contest(name: str, turns: Mapping[str, Callable[[], object]], options: Options) -> Contest:
    # SGPA and the ensembles take most of a round, and nothing here has a limit
    rounds = min(options.rounds, 3)
    results = compare(turns, baseline=BASELINE, rounds=rounds, turn=0.0, warmup=1)
    return Contest(name, BASELINE, results)


def _build(method: str, config: RunConfig, benchmark: Benchmark) -> Classifier:
    torch.manual_seed(config.seed)
    return build_model(config.model, input_shape(benchmark), len(benchmark.classes), method)


def _predictors(
    models: Mapping[str, Classifier], train: list[Batch], samples: int
) -> dict[str, Predictor]:
    """Every method, fitted with the batches at hand where it needs fitting."""
    gp = models["sngp"]
    gp.head.fit(pooled(gp, inputs)[0] for inputs, _, _ in train)  # pyright: ignore
    direct = {name: Direct(model, samples) for name, model in models.items()}

    def laplace(name: str) -> Predictor:
        return kfllla.fit(models[name], train, train, num_samples=samples, prior_precision=1.0)

    def five(name: str) -> Predictor:
        return ensemble.Ensemble((direct[name],) * ENSEMBLE_SIZE)

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


def _prediction(predictor: Predictor, some: list[Batch]) -> Callable[[], object]:
    return lambda: predict_batches(predictor, some)
