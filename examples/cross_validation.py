"""Compares methods on the training examples in turn, where a small test set cannot decide.

    python examples/cross_validation.py cola-small --out runs/folds --seeds 5 \\
        --arm "softmax: msp" --arm "KEP-SVGP: kep" --arm "five softmax models: ensemble"

The training set is cut into folds; every model is trained without one of them and predicts it.
The predictions of all folds together are measured, and the arms compared with the first one, or
with those in --against, by a paired bootstrap.
An arm is a name, a method as in `kepsvgp compare`, and settings of its own, among them `seeds=3`
in place of --seeds. The validation set stays what it is, so that what was chosen with it was not
chosen on a fold; the test set is not looked at. Finished runs are kept and not trained again, and
two processes may share the work with different folds in --only; at the end, call it without.
"""

import argparse
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kepsvgp import Prediction
from kepsvgp.baselines.methods import get_method, result_name, split_name, train_method
from kepsvgp.configfile import load_config
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.denormals import flushed_denormals
from kepsvgp.errors import UserError
from kepsvgp.evaluation import evaluate
from kepsvgp.files import write_json
from kepsvgp.metrics import all_metrics, paired_bootstrap
from kepsvgp.runs import CHECKPOINTS, Checkpoint, RunFolder, library_versions

# name, factor of the paper's tables
COLUMNS = {
    "accuracy": 100,
    "mcc": 100,
    "aurc": 1000,
    "auroc": 100,
    "fpr95": 100,
    "ece": 100,
    "nll": 10,
    "brier": 100,
}


class Arm(NamedTuple):
    """One side of the comparison."""

    name: str
    method: str
    settings: list[str]
    seeds: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Arm":
        """From `name: method key=value …`."""
        name, _, rest = text.partition(":")
        if not rest.strip():
            raise argparse.ArgumentTypeError(f"wanted 'NAME: METHOD KEY=VALUE …', got {text!r}")
        method, *settings = rest.split()
        own = [int(setting[6:]) for setting in settings if setting.startswith("seeds=")]
        settings = [setting for setting in settings if not setting.startswith("seeds=")]
        return cls(name.strip(), method, settings, *own)

    @property
    def is_ensemble(self) -> bool:
        """Whether all seeds together make one model."""
        return split_name(self.method)[1] == "ensemble"

    @property
    def result(self) -> str:
        """The name that its results have in a run."""
        base, posthoc = split_name(self.method)
        return result_name(base or "msp", posthoc)


class Fold(NamedTuple):
    """One part of the training set, held out."""

    number: int
    benchmark: Benchmark


def cut(benchmark: Benchmark, count: int) -> list[Fold]:
    """The training set, which is in random order, in `count` parts."""
    rows = torch.arange(len(benchmark.train))
    folds = []
    for number, held in enumerate(rows.tensor_split(count)):
        rest = torch.cat([rows[: held[0]], rows[held[-1] + 1 :]])
        train, test = benchmark.train.subset(rest), benchmark.train.subset(held)
        folds.append(Fold(number, replace(benchmark, train=train, test=test)))
    return folds


def trained(arm: Arm, fold: Fold, options: argparse.Namespace) -> list[RunFolder]:
    """A run for each seed, shared with the arms that differ only in what comes after training."""
    base = split_name(arm.method)[0] or "msp"
    settings = hashlib.sha256(" ".join(arm.settings).encode()).hexdigest()[:6]
    runs = []
    for seed in range(arm.seeds or options.seeds):
        folder = options.out / f"{base}-{settings}-fold{fold.number}-seed{seed}"
        print(f"{arm.name}: fold {fold.number}, seed {seed}", flush=True)
        config = load_config(options.config, [*arm.settings, f"method={base}", f"seed={seed}"])
        runs.append(train_method(config, fold.benchmark, folder, resume=True))
    return runs


def held_out(arm: Arm, fold: Fold, runs: list[RunFolder], checkpoint: Checkpoint) -> Tensor:
    """Probabilities for the fold: of each seed, or of one ensemble of all."""
    predictions = []
    for run, *members in [runs] if arm.is_ensemble else [[run] for run in runs]:
        file = run.predictions_file(checkpoint, arm.result, "test")
        if not file.exists() or members:
            method = get_method(arm.method, run, fold.benchmark, checkpoint, members=members)
            about = {"method": arm.result, "checkpoint": checkpoint, "splits": ["test"]}
            evaluate(run, fold.benchmark, method, **about)
        predictions.append(Prediction.load(file, run=run.identity()).probs)
    return torch.stack(predictions)


def shares(labels: Tensor, num_classes: int) -> list[float]:
    """How often each class occurs."""
    return (labels.flatten().bincount(minlength=num_classes) / labels.numel()).tolist()


def compared(probs: dict[str, Tensor], labels: Tensor, against: list[str]) -> dict[str, Any]:
    """The metrics of every arm, a number for each of its models, and differences with intervals.

    `predicted` is how often each class is called the most probable one, over all models.
    """
    measured = {arm: [all_metrics(each, labels) for each in given] for arm, given in probs.items()}
    return {
        "predicted": {
            arm: shares(given.argmax(dim=-1), given.shape[-1]) for arm, given in probs.items()
        },
        "results": {
            arm: {name: [each[name] for each in found] for name in COLUMNS}
            for arm, found in measured.items()
        },
        "differences": {
            f"{arm} − {other}": {
                name: interval._asdict()
                for name, interval in paired_bootstrap(
                    probs[arm], probs[other], labels, metrics=tuple(COLUMNS)
                ).items()
            }
            for other in against
            for arm in probs
            if arm != other
        },
    }


def show(rule: str, found: dict[str, Any]) -> None:
    """A table in Markdown, in the units of the paper."""
    print(f"\n| {rule} | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}")
    for arm, metrics in found["results"].items():
        means = [factor * sum(metrics[k]) / len(metrics[k]) for k, factor in COLUMNS.items()]
        print(f"| {arm} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    for pair, intervals in found["differences"].items():
        cells = [
            "{difference:+.1f} [{low:+.1f}, {high:+.1f}]".format(
                **{end: factor * value for end, value in intervals[name].items()}
            )
            for name, factor in COLUMNS.items()
        ]
        print(f"| {pair} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Methods compared on held-out training examples.")
    parser.add_argument("config", help="a TOML file, or the name of a shipped one")
    parser.add_argument("--arm", action="append", required=True, type=Arm.parse)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", help="of the folds, these, by number")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--against", nargs="+", metavar="NAME", help="the first arm by default")
    options = parser.parse_args()
    against = options.against or [options.arm[0].name]
    if unknown := set(against) - {arm.name for arm in options.arm}:
        parser.error(f"--against must name arms; got {', '.join(sorted(unknown))}")
    if options.folds < 2:
        parser.error(f"--folds must be at least 2; got {options.folds}")
    if any(setting.startswith("data.") for arm in options.arm for setting in arm.settings):
        parser.error("arms must share their data; put data.* into a configuration of your own")
    rules: dict[str, Any] = {}
    with flushed_denormals():
        folds = cut(load_benchmark(load_config(options.config, []).data), options.folds)
        folds = [fold for fold in folds if fold.number in (options.only or range(options.folds))]
        runs = {arm.name: [trained(arm, fold, options) for fold in folds] for arm in options.arm}
        labels = torch.cat([fold.benchmark.test.labels for fold in folds])
        for rule in CHECKPOINTS:
            probs = {}
            for arm in options.arm:
                pairs = zip(folds, runs[arm.name], strict=True)
                probs[arm.name] = torch.cat([held_out(arm, *pair, rule) for pair in pairs], dim=1)
            rules[rule] = compared(probs, labels, against)
            show(rule, rules[rule])
    record = {
        "config": options.config,
        "arms": {arm.name: [arm.method, *arm.settings] for arm in options.arm},
        "folds": {fold.number: len(fold.benchmark.test) for fold in folds},
        "labels": shares(labels, len(folds[0].benchmark.classes)),
        "versions": library_versions(),
        "last kl": {
            name: [run.history()[-1]["train"]["kl"] for each in parts for run in each]
            for name, parts in runs.items()
        },
        "rules": rules,
    }
    chosen = "".join(f"-{number}" for number in options.only or ())
    write_json(options.out / f"folds{chosen}.json", record)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
