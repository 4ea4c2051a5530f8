"""Compares methods on the training examples in turn, where a small test set cannot decide.

    python examples/cross_validation.py digits-small --out runs/folds --seeds 3 \\
        --arm "softmax: msp" --arm "KEP-SVGP: kep" --arm "three softmax models: ensemble"

The training set is cut into folds; every model is trained without one of them and measured on it.
Means over the folds are compared with those of the first arm, or of those in --against, by a
paired bootstrap that resamples each fold. An arm is a name, a method as in `kepsvgp compare`, and
settings of its own, among them `seeds=1` in place of --seeds. The validation set stays what it
is, so that what was chosen with it was not chosen on a fold; the test set is not looked at.
Finished runs are kept and not trained again, and two processes may share the work with different
folds in --only; at the end, call it without.

A setting that stands for the size of the training set, such as the objective.kl_weight of CoLA's
profiles, must be that of the folds' models: `--arm "KEP-SVGP: kep objective.kl_weight=6157"`.
"""

import argparse
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.files import write_json
from kepsvgp.methods.base import Method
from kepsvgp.metrics import all_metrics, paired_bootstrap
from kepsvgp.metrics.registry import OF_A_SET
from kepsvgp.ops.denormals import flushed_denormals
from kepsvgp.runs.evaluation import measure
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import library_versions
from kepsvgp.runs.weights import CHECKPOINTS, Checkpoint

COLUMNS = {metric.name: metric.factor for metric in OF_A_SET}
# sections of the configuration, and settings, that an arm cannot have of its own
SHARED = ("data", "method", "seed")


class Arm(NamedTuple):
    """One side of the comparison."""

    name: str
    method: str
    settings: list[str]
    seeds: int

    @classmethod
    def parse(cls, text: str, config: str, seeds: int) -> "Arm":
        """From `name: method key=value …`; what is wrong with it is told before any training."""
        name, _, rest = text.partition(":")
        if not rest.strip():
            raise UserError(f"--arm must be 'NAME: METHOD KEY=VALUE …'; got {text!r}.")
        method, *given = rest.split()
        own = [setting for setting in given if setting.startswith("seeds=")]
        if not all(setting.removeprefix("seeds=").isdecimal() for setting in own):
            raise UserError(f"seeds= must be a whole number; {name.strip()} has {own[-1]}.")
        arm = cls(
            name.strip(),
            method,
            [setting for setting in given if setting not in own],
            int(own[-1].removeprefix("seeds=")) if own else seeds,
        )
        arm.asked.check_installed()
        load_config(config, arm.settings)
        shared = [s for s in arm.settings if s.split("=")[0].split(".")[0] in SHARED]
        if shared:
            raise UserError(
                f"arms must share their {', '.join(SHARED)}; {arm.name} has {shared[0]}."
            )
        if arm.seeds < 1 + arm.is_ensemble:
            raise UserError(f"{arm.name} must have {1 + arm.is_ensemble} seeds or more.")
        return arm

    @property
    def asked(self) -> Method:
        """The method itself."""
        return find_method(self.method)

    @property
    def is_ensemble(self) -> bool:
        """Whether all seeds together make one model."""
        return self.asked.is_ensemble


# for every arm and fold, (seed, example, class)
Probs = dict[str, list[Tensor]]


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
    """A run for each seed, shared with the arms of the same trained method and settings."""
    base = arm.asked.trained
    settings = hashlib.sha256(" ".join(arm.settings).encode()).hexdigest()[:6]
    runs = []
    for seed in range(arm.seeds):
        folder = options.out / f"{base.name}-{settings}-fold{fold.number}-seed{seed}"
        print(f"{arm.name}: fold {fold.number}, seed {seed}", flush=True)
        config = load_config(
            options.config, [*arm.settings, f"method={base.place}", f"seed={seed}"]
        )
        runs.append(base.train(config, fold.benchmark, folder, resume=True))
    return runs


def held_out(arm: Arm, fold: Fold, runs: list[RunFolder], checkpoint: Checkpoint) -> Tensor:
    """Probabilities for the fold: of each seed, or of one ensemble of all."""
    predictions = []
    for run, *members in [runs] if arm.is_ensemble else [[run] for run in runs]:
        about = {"checkpoint": checkpoint, "members": members}
        measure(run, arm.asked, fold.benchmark, ["test"], **about)
        predictions.append(run.prediction(checkpoint, arm.asked.name, "test").probs)
    return torch.stack(predictions)


def shares(labels: Tensor, num_classes: int) -> list[float]:
    """How often each class occurs."""
    return (labels.flatten().bincount(minlength=num_classes) / labels.numel()).tolist()


def compared(probs: Probs, labels: list[Tensor], against: list[str]) -> dict[str, Any]:
    """The metrics of every arm, a number for each of its models, and differences with intervals.

    Each is the mean over the folds, by their size: confidences of different models cannot be
    ranked together. `predicted` is how often each class is called the most probable one.
    """
    whole = {arm: torch.cat(parts, dim=1) for arm, parts in probs.items()}
    sizes = [len(part) for part in labels]

    def means(parts: list[Tensor], seed: int) -> dict[str, float]:
        found = [all_metrics(p[seed], y) for p, y in zip(parts, labels, strict=True)]
        weighed = list(zip(sizes, found, strict=True))
        return {k: sum(n * each[k] for n, each in weighed) / sum(sizes) for k in COLUMNS}

    measured = {
        arm: [means(parts, seed) for seed in range(len(parts[0]))] for arm, parts in probs.items()
    }
    return {
        "predicted": {
            arm: shares(given.argmax(dim=-1), given.shape[-1]) for arm, given in whole.items()
        },
        "results": {
            arm: {name: [each[name] for each in found] for name in COLUMNS}
            for arm, found in measured.items()
        },
        "differences": {
            f"{arm} − {other}": {
                name: interval._asdict()
                for name, interval in paired_bootstrap(
                    whole[arm], whole[other], torch.cat(labels), parts=sizes, metrics=list(COLUMNS)
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
    parser.add_argument("--arm", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", help="of the folds, these, counted from 0")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--against", nargs="+", metavar="NAME", help="the first arm by default")
    options = parser.parse_args()
    arms = [Arm.parse(text, options.config, options.seeds) for text in options.arm]
    names = [arm.name for arm in arms]
    against = options.against or names[:1]
    if len(set(names)) < len(names) or not set(against) <= set(names):
        raise UserError("arms must have names of their own, and --against must be among them.")
    if options.folds < 2 or not set(options.only or ()) <= set(range(options.folds)):
        raise UserError(f"--folds must be 2 or more, and --only below it; got {options.folds}.")
    rules: dict[str, Any] = {}
    with flushed_denormals():
        folds = cut(load_benchmark(load_config(options.config, []).data), options.folds)
        folds = [fold for fold in folds if fold.number in (options.only or range(options.folds))]
        runs = {arm.name: [trained(arm, fold, options) for fold in folds] for arm in arms}
        labels = [fold.benchmark.test.labels for fold in folds]
        for rule in CHECKPOINTS:
            probs: Probs = {}
            for arm in arms:
                pairs = zip(folds, runs[arm.name], strict=True)
                probs[arm.name] = [held_out(arm, *pair, rule) for pair in pairs]
            rules[rule] = compared(probs, labels, against)
            show(rule, rules[rule])
    record = {
        "config": options.config,
        "arms": [arm._asdict() for arm in arms],
        "folds": {fold.number: len(fold.benchmark.test) for fold in folds},
        "labels": shares(torch.cat(labels), len(folds[0].benchmark.classes)),
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
