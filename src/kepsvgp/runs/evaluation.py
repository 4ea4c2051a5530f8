"""A trained run, measured: predictions and metrics for its splits, written into its folder."""

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.batching import Batches
from kepsvgp.data.progress import track
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, Predictor, predict_batches
from kepsvgp.metrics import all_metrics, confidence_score, ood_metrics
from kepsvgp.ops.device import find_device
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.peers import Peers, classifier_of
from kepsvgp.runs.weights import Checkpoint

# {split: {metric: value}}
SplitMetrics = dict[str, dict[str, float]]
# {name: larger for what is more foreign}
Scores = dict[str, Tensor]


def measure(
    run: RunFolder,
    method: Any,
    benchmark: Benchmark,
    splits: Sequence[str] = ("val", "test"),
    *,
    checkpoint: Checkpoint | None = None,
    members: Sequence[RunFolder] = (),
    again: bool = False,
    console: Console | None = None,
) -> SplitMetrics:
    """The metrics of a trained run, asked through a method; nothing is fitted or predicted twice.

    Args:
        run: Where results are, and go.
        method: The method of the run, or one that is fitted to it; see `kepsvgp.methods.base`.
        benchmark: The data of the run.
        splits: As for `evaluate`.
        checkpoint: Which weights; None for those that the run selected.
        members: The other runs of an ensemble, which is kept with the first.
        again: Predict what was predicted before, too.
        console: Where progress is shown; None for nowhere.
    """
    config, names = run.config(), split_names(benchmark, splits)
    weights = checkpoint or config.train.select

    def missing() -> list[str]:
        known = run.metrics().get(weights, {}).get(method.name, {})
        files = {name: run.predictions_file(weights, method.name, name) for name in names}
        return [name for name in names if name not in known or not files[name].exists()]

    # an ensemble may be of other members than before
    if again or members or missing():
        run.check_outside()
        device = find_device(config.train.device, is_binding=False)
        predictor = method.predictor(
            run, benchmark, weights, members=members, device=device, console=console
        )
        # more than before, if the method had to be fitted again
        left = names if again else missing()
        evaluate(
            run, benchmark, predictor, method=method.name, checkpoint=weights, splits=left,
            console=console,
        )  # fmt: skip
    known = run.metrics()[weights][method.name]
    return {name: known[name] for name in names}


def evaluate(
    run: RunFolder,
    benchmark: Benchmark,
    predictor: nn.Module | Predictor,
    *,
    method: str,
    checkpoint: Checkpoint,
    splits: Sequence[str] = ("val", "test"),
    console: Console | None = None,
) -> SplitMetrics:
    """Predicts splits, writes predictions and metrics into the run folder, and returns these.

    Sets of other data are told from the test set by the confidence, as in the paper, and by other
    scores, for which the model is shown the training set; the test set is the positive class. It
    is therefore predicted with them if it was not before.

    Args:
        run: Where the results go.
        benchmark: The data of the run.
        predictor: The trained model, or a method fitted on top of it.
        method: Name of the method.
        checkpoint: Name of the checkpoint that the predictor was made from.
        splits: `val`, `test`, `shift`, `ood`, `all`, or single sets such as `shift/fog/5`.
        console: Where progress is shown; None for nowhere.
    """
    config = run.config()
    names = split_names(benchmark, splits)
    familiar_file = run.predictions_file(checkpoint, method, "test")
    has_foreign = any(name.startswith("ood/") for name in names)
    if has_foreign and "test" not in names and not familiar_file.exists():
        names.append("test")
    # the test set first: others are compared with it
    names.sort(key=lambda name: name != "test")

    device = find_device(config.train.device, is_binding=False)
    if isinstance(predictor, nn.Module):
        predictor.to(device)
    model = classifier_of(predictor) if has_foreign else None
    peers = None
    if model is not None:
        shown = track(_batches(benchmark.train, config, device), "training set", console)
        peers = Peers.fit(model, shown, device=device)

    def scores(name: str) -> Scores:
        examples = _batches(examples_of(benchmark, name), config, device)
        more = {} if peers is None else peers.scores(examples)
        return ood_scores(run.prediction(checkpoint, method, name), more)

    familiar: Scores | None = None
    measured: SplitMetrics = {}
    for name in names:
        prediction, seconds = predict_examples(
            predictor, examples_of(benchmark, name), config, device, name=name, console=console
        )
        run.write_prediction(checkpoint, method, name, prediction)
        assert prediction.targets is not None
        if name.startswith("ood/"):
            familiar = scores("test") if familiar is None else familiar
            values = told_apart(familiar, scores(name))
        else:
            values = all_metrics(prediction.probs, prediction.targets)
        measured[name] = values | {"seconds_per_1000": 1000 * seconds / len(prediction)}
        # after each, so that what was measured survives a kill
        run.add_metrics(checkpoint, method, {name: measured[name]})
    return measured


def told_apart(familiar: Scores, foreign: Scores) -> dict[str, float]:
    """How well each score tells two sets apart; the test set is the positive class."""
    values: dict[str, float] = {}
    for name in (name for name in familiar if name in foreign):
        found = ood_metrics(familiar[name], foreign[name], positive="in")
        # the paper has but the confidence
        end = "" if name == "confidence" else f"_{name}"
        values |= {f"{metric}{end}": value for metric, value in found.items()}
    return values


def ood_scores(prediction: Prediction, more: Scores) -> Scores:
    """Scores of foreignness that follow from a prediction, and others beside them."""
    own = {name: getattr(prediction, name) for name in ("entropy", "epistemic", "novelty")}
    known = {name: score for name, score in own.items() if score is not None}
    return {"confidence": confidence_score(prediction.probs), **known, **more}


def _batches(examples: Examples, config: RunConfig, device: torch.device) -> Batches:
    pin = device.type == "cuda"
    return batches(examples, config.prediction.batch_size, bucket=True, pin=pin)


def split_names(benchmark: Benchmark, wanted: Sequence[str]) -> list[str]:
    """The sets that `wanted` means, each once: groups stand for all that is in them."""
    groups = {
        "val": ["val"],
        "test": ["test"],
        "shift": [f"shift/{name}" for name in benchmark.shifts],
        "ood": [f"ood/{name}" for name in benchmark.ood],
    }
    groups["all"] = list(chain.from_iterable(groups.values()))
    groups = {name: sets for name, sets in groups.items() if sets}
    single = set(groups["all"])
    unknown = [name for name in wanted if name not in groups and name not in single]
    if unknown:
        known = ", ".join(chain(groups, *(groups.get(name, [])[:1] for name in ("shift", "ood"))))
        raise UserError(
            f"splits must be among {known} and the like; {benchmark.name} has no {unknown[0]!r}."
        )
    return list(dict.fromkeys(chain.from_iterable(groups.get(name, [name]) for name in wanted)))


def examples_of(benchmark: Benchmark, split: str) -> Examples:
    """The examples of a split by its name in results."""
    group, _, name = split.partition("/")
    match group:
        case "shift":
            return benchmark.shifts[name]
        case "ood":
            return benchmark.ood[name]
        case "train" | "val" | "test":
            return getattr(benchmark, group)
    raise UserError(f"a split must be train, val, test, shift/… or ood/…; got {split!r}.")


class Timed(NamedTuple):
    """A prediction, and the time it took without that of loading."""

    prediction: Prediction
    seconds: float


def predict_examples(
    predictor: nn.Module | Predictor,
    examples: Examples,
    config: RunConfig,
    device: torch.device,
    *,
    name: str = "",
    console: Console | None = None,
) -> Timed:
    """The prediction for a set as a configuration asks for it; its name stands before progress."""
    loader = _batches(examples, config, device)
    start = time.perf_counter()
    prediction = predict_batches(
        predictor,
        track(loader, name, console),
        num_samples=config.prediction.num_samples,
        average=config.prediction.average,
        seed=config.seed,
        device=device,
    )
    return Timed(prediction, time.perf_counter() - start - loader.waited)
