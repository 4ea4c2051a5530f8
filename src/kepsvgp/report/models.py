"""Models as a reader compares them: one benchmark, some models, each with its seeds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kepsvgp.config.comparison import flatten
from kepsvgp.config.plugins import find_asked, find_method
from kepsvgp.config.sections import DataConfig, RunConfig
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction
from kepsvgp.methods.post_hoc import read_stamp
from kepsvgp.report.answers import Answers, answers_of
from kepsvgp.report.labels import labels_of, name_of, settings_of
from kepsvgp.runs.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Member:
    """One seed of a model: what it answered, and how good that was."""

    checkpoint: str
    """The checkpoint that is shown; empty where there are none."""
    results: dict[str, dict[str, dict[str, Any]]]
    """{checkpoint: {split: {metric: value}}}"""
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """What it predicted by split, where it is no run."""
    seed: int = 0
    """The seed it was trained with."""

    @cached_property
    def test(self) -> Answers | None:
        """The answers to the test set."""
        return self.answers("test")

    def metrics(self, split: str, checkpoint: str | None = None) -> dict[str, Any]:
        """The metrics of a split, as metrics.json has them; empty where it was not evaluated."""
        return self.results.get(checkpoint or self.checkpoint, {}).get(split, {})

    def answers(self, split: str) -> Answers | None:
        """The answers to a split; None where there are none or they are not finite."""
        return answers_of(self.predictions[split]) if split in self.predictions else None

    @property
    def splits(self) -> list[str]:
        """The splits for which metrics are known."""
        return list(self.results[self.checkpoint])


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained(Member):
    """A run of ours, and one of the methods that were evaluated on it."""

    run: RunFolder
    config: RunConfig
    method: str

    def answers(self, split: str) -> Answers | None:
        """The answers that were kept in the run folder."""
        if not self.run.predictions_file(self.checkpoint, self.method, split).exists():
            return None
        return answers_of(self.run.prediction(self.checkpoint, self.method, split))


@dataclass(frozen=True)
class Model:
    """A method with one configuration, and its seeds."""

    label: str
    members: tuple[Member, ...]

    @property
    def trained(self) -> list[Trained]:
        """The seeds that are runs of ours."""
        return [member for member in self.members if isinstance(member, Trained)]

    @property
    def tests(self) -> list[Answers]:
        """The answers to the test set, of the seeds that have some."""
        found = [member.test for member in self.members if member.test is not None]
        return [test for test in found if len(test.labels)]

    @property
    def num_models(self) -> int | None:
        """How many trained models answer together; None for an ensemble that was not kept."""
        if not self.trained:
            return 1
        member = self.trained[0]
        folder = member.run.method_folder(f"{member.checkpoint}/{member.method.split('+')[-1]}")
        stamp = read_stamp(folder)
        if stamp is not None:
            return len(stamp["weights"])
        try:
            method = find_asked(member.run.config().method, member.method)
        except UserError:
            # the package that it came from may not be here
            return 1
        return None if method.is_ensemble else 1

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that were evaluated, each once."""
        return list(dict.fromkeys(name for member in self.members for name in member.results))

    def values(self, split: str, metric: str, *, checkpoint: str | None = None) -> list[float]:
        """One value per seed that has this metric, straight from metrics.json."""
        found = (member.metrics(split, checkpoint).get(metric) for member in self.members)
        return [float(value) for value in found if isinstance(value, int | float)]


@dataclass(frozen=True)
class Comparison:
    """Models that were tested on the same examples, and what is to be said of their runs."""

    title: str
    models: tuple[Model, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    not_evaluated: tuple[RunFolder, ...] = ()

    @property
    def members(self) -> list[Member]:
        """Every seed of every model."""
        return [member for model in self.models for member in model.members]

    @property
    def trained(self) -> list[Trained]:
        """Those of them that are runs of ours."""
        return [member for model in self.models for member in model.trained]

    @property
    def runs(self) -> list[RunFolder]:
        """Each run once, whatever number of methods were evaluated on it."""
        return list(dict.fromkeys(member.run for member in self.trained))

    @property
    def test(self) -> Answers | None:
        """Some answers to the test set, for its labels and positions."""
        return next((m.test for m in self.members if m.test is not None), None)

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 where no predictions were kept."""
        return 0 if self.test is None else self.test.probs.shape[1]

    def splits(self, prefix: str) -> list[str]:
        """All evaluated splits that begin with `prefix`, each once, in order of appearance."""
        names = (name for member in self.members for name in member.splits)
        return [name for name in dict.fromkeys(names) if name.startswith(prefix)]


def compare(runs: Sequence[RunFolder], *, checkpoint: str | None = None) -> list[Comparison]:
    """The runs, grouped into comparisons on equal test sets."""
    kept, copies = without_copies(runs)
    members = [member for run in kept for member in _members(run, checkpoint)]
    if not members:
        raise UserError(
            "a report needs at least one evaluated run; got none. Run `kepsvgp evaluate RUN`."
        )
    groups: dict[tuple[str, str], list[Trained]] = {}
    for member in members:
        groups.setdefault((title_of(member.config.data), _test_set(member)), []).append(member)
    evaluated = {member.run for member in members}
    others = [run for run in kept if run not in evaluated]
    counts: dict[str, int] = {}
    comparisons = []
    for (name, _), group in groups.items():
        counts[name] = counts.get(name, 0) + 1
        # a second test set of the same benchmark, such as one of another split
        title = name if counts[name] == 1 else f"{name} ({counts[name]})"
        notes = dict.fromkeys(note for m in group for note in copies.get(m.run, ()))
        left = tuple(run for run in others if title_of(run.config().data) == name)
        classes = group[0].run.classes()
        comparisons.append(Comparison(title, tuple(_models(group)), classes, tuple(notes), left))
    return comparisons


def title_of(data: DataConfig) -> str:
    """What data are called: a benchmark's name, or that of the user's own data."""
    path = data.path or Path(data.name)
    return path.stem if path.suffix.lower() in (".csv", ".tsv") else path.name


def without_copies(
    runs: Sequence[RunFolder],
) -> tuple[list[RunFolder], dict[RunFolder, list[str]]]:
    """Each run once, and by the folder that is kept what is to be said of the others.

    Of several folders of one run, that with the most epochs and results is kept.
    """
    same: dict[str, list[RunFolder]] = {}
    for run in runs:
        same.setdefault(run.identity(), []).append(run)
    kept, notes = [], {}
    for group in same.values():
        best = max(group, key=lambda run: (len(run.history()), len(flatten(run.metrics()))))
        kept.append(best)
        notes[best] = [
            f"{run.path} is left out: it is the same run as {best.path}, not another seed."
            for run in group
            if run is not best
        ]
    return kept, notes


def _members(run: RunFolder, wanted: str | None) -> list[Trained]:
    config, metrics = run.config(), run.metrics()
    if not metrics:
        return []
    checkpoint = wanted or config.train.select
    if checkpoint not in metrics:
        if wanted is not None:
            raise UserError(
                f"{run.path} must have been evaluated at the checkpoint '{wanted}'; it has "
                f"{', '.join(metrics)}. Evaluate it with `kepsvgp evaluate`."
            )
        checkpoint = next(iter(metrics))
    own = find_method(config.method)
    return [
        Trained(
            checkpoint,
            {name: methods.get(method, {}) for name, methods in metrics.items()},
            seed=config.seed,
            run=run,
            config=config,
            method=method,
        )
        # the trained model before what was fitted on top of it
        for method in sorted(metrics[checkpoint], key=lambda name: name != own.name)
    ]


def _test_set(member: Trained) -> str:
    """A name for the examples a member was tested on: equal names, equal examples."""
    if member.test is None:
        return member.config.data.model_dump_json()
    content = member.test.index.tobytes() + member.test.labels.tobytes()
    # data of one's own, which their rows and labels do not tell from others
    content += str(member.run.record()["splits"].get("contents", "")).encode()
    return hashlib.sha256(content).hexdigest()


def _models(members: Sequence[Trained]) -> list[Model]:
    """Members of equal method and settings are seeds of one model."""
    variants: dict[str, dict[str, list[Trained]]] = {}
    for member in members:
        name = name_of(member.config.method, member.method)
        settings = json.dumps(settings_of(member.config), sort_keys=True, default=str)
        variants.setdefault(name, {}).setdefault(settings, []).append(member)
    models = []
    for name, by_settings in variants.items():
        configs = [seeds[0].config for seeds in by_settings.values()]
        for label, seeds in zip(labels_of(name, configs), by_settings.values(), strict=True):
            models.append(Model(label, tuple(sorted(seeds, key=lambda m: m.seed))))
    return models
