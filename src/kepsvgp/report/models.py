"""Runs as a reader compares them: one benchmark, some models, each with its seeds."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np

from kepsvgp.config.comparison import FREE, flatten
from kepsvgp.config.sections import Method
from kepsvgp.errors import UserError
from kepsvgp.files import RUN, read_json
from kepsvgp.report.runs import Run, SplitPredictions, read_run

NAMES = {
    "ensemble": "Deep ensemble",
    "kep": "KEP-SVGP",
    "kfllla": "KFLLLA",
    "mc_dropout": "MC dropout",
    "msp": "MSP",
    "primal": "Primal attention",
    "sgpa": "SGPA",
    "sngp": "SNGP",
    "svdkl": "SV-DKL",
    "temperature": "Temperature scaling",
}
# a label names at most so many settings
MOST_TOLD = 3
# what may differ between two seeds of one model
PER_SEED = FREE | {"seed", "data.path", "model.svdkl.softmax_run"}


@dataclass(frozen=True)
class Member:
    """One seed of a model: a run, the checkpoint shown and its predictions of the test set."""

    run: Run
    checkpoint: str
    method: str
    test: SplitPredictions | None

    def metrics(self, split: str) -> dict[str, Any]:
        """The metrics of a split, as metrics.json has them; empty where it was not evaluated."""
        return self.run.metrics.get(self.checkpoint, {}).get(self.method, {}).get(split, {})

    def predictions(self, split: str) -> SplitPredictions | None:
        """The predictions for a split; None where there are none or they are not finite."""
        found = self.run.predictions(self.checkpoint, self.method, split)
        return found if found is not None and np.isfinite(found.probs).all() else None

    @property
    def num_models(self) -> int | None:
        """How many trained models answer together; None for an ensemble that was not kept."""
        posthoc = self.method.split("+")[-1]
        path = self.run.folder / "methods" / self.checkpoint / posthoc / "ensemble.json"
        if path.exists():
            return len(read_json(path, "members")["members"])
        return None if posthoc == "ensemble" else 1

    @property
    def splits(self) -> list[str]:
        """The splits for which metrics are known."""
        return list(self.run.metrics.get(self.checkpoint, {}).get(self.method, {}))


@dataclass(frozen=True)
class Model:
    """A method with one configuration, and its seeds."""

    label: str
    members: tuple[Member, ...]

    @property
    def method(self) -> str:
        """The name under which its metrics are stored."""
        return self.members[0].method

    def values(self, split: str, metric: str) -> list[float]:
        """One value per seed that has this metric, straight from metrics.json."""
        found = (member.metrics(split).get(metric) for member in self.members)
        return [float(value) for value in found if isinstance(value, int | float)]


@dataclass(frozen=True)
class Comparison:
    """Models that were tested on the same examples, and what is to be said of their runs."""

    benchmark: str
    title: str
    models: tuple[Model, ...]
    notes: tuple[str, ...] = ()

    @property
    def members(self) -> list[Member]:
        """Every seed of every model."""
        return [member for model in self.models for member in model.members]

    @property
    def test(self) -> SplitPredictions | None:
        """Some predictions of the test set, for its labels and positions."""
        return next((m.test for m in self.members if m.test is not None), None)

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 where no predictions were kept."""
        return 0 if self.test is None else self.test.probs.shape[1]

    def splits(self, prefix: str) -> list[str]:
        """All evaluated splits that begin with `prefix`, each once, in order of appearance."""
        names = (name for member in self.members for name in member.splits)
        return [name for name in dict.fromkeys(names) if name.startswith(prefix)]


def compare(folders: Sequence[Path], *, checkpoint: str | None = None) -> list[Comparison]:
    """The runs in these folders, grouped into comparisons on equal test sets."""
    runs, copies = without_copies([read_run(folder) for folder in folders])
    members = [m for run in runs for m in _members(run, checkpoint)]
    if not members:
        raise UserError(
            "a report needs at least one evaluated run; got none. Run `kepsvgp evaluate RUN`."
        )
    groups: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        groups.setdefault((member.run.title, _test_set(member)), []).append(member)
    counts: dict[str, int] = {}
    comparisons = []
    for (name, _), group in groups.items():
        counts[name] = counts.get(name, 0) + 1
        # a second test set of the same benchmark, such as one of another split
        title = name if counts[name] == 1 else f"{name} ({counts[name]})"
        notes = dict.fromkeys(n for m in group for n in copies.get(m.run.folder, ()))
        models = tuple(_models(group))
        comparisons.append(Comparison(group[0].run.benchmark, title, models, tuple(notes)))
    return comparisons


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], dict[Path, list[str]]]:
    """Each run once, and by the folder that is kept what is to be said of the others.

    Of several folders of one run, that with the most epochs and results is kept.
    """
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(run.record.get(RUN) or str(run.folder), []).append(run)
    kept, notes = [], {}
    for group in same.values():
        best = max(group, key=lambda run: (len(run.history), len(flatten(run.metrics))))
        kept.append(best)
        notes[best.folder] = [
            f"{run.folder} is left out: it is the same run as {best.folder}, not another seed."
            for run in group
            if run is not best
        ]
    return kept, notes


def _members(run: Run, wanted: str | None) -> list[Member]:
    checkpoint = run.checkpoint(wanted)
    return [
        Member(run, checkpoint, method, _finite(run.predictions(checkpoint, method, "test")))
        # the trained model before what was fitted on top of it
        for method in sorted(run.metrics[checkpoint], key=lambda name: name != run.method)
    ]


def _finite(found: SplitPredictions | None) -> SplitPredictions | None:
    return found if found is not None and np.isfinite(found.probs).all() else None


def _test_set(member: Member) -> str:
    """A name for the examples a member was tested on: equal names, equal examples."""
    if member.test is None:
        return json.dumps(member.run.config.get("data", {}), sort_keys=True, default=str)
    content = member.test.index.tobytes() + member.test.labels.tobytes()
    # data of one's own, which their rows and labels do not tell from others
    content += str(member.run.record.get("splits", {}).get("contents", "")).encode()
    return hashlib.sha256(content).hexdigest()


def _settings(run: Run) -> dict[str, Any]:
    """What makes a run another model, versions and the sections of other methods aside."""
    # Primal-Attention takes what it shares with KEP-SVGP from there
    own = {run.method, "kep"} if run.method == "primal" else {run.method}
    foreign = tuple(f"model.{name}." for name in get_args(Method) if name not in own)
    return {
        key: value
        for key, value in flatten(run.config).items()
        if key not in PER_SEED and not key.startswith(("versions.", *foreign))
    }


def name_of(trained: str, method: str) -> str:
    """What a method is called on the page: `KEP-SVGP + Temperature scaling`."""
    parts = method.split("+")
    base = parts[0] if len(parts) > 1 else trained
    if parts[-1] == "ensemble" and base != "msp":
        return f"{NAMES.get(base, base)} ensemble"
    # a post-hoc method on plain softmax attention goes by its own name, as in the paper
    if parts[0] != trained and trained != "msp":
        parts = [trained, *parts]
    return " + ".join(NAMES.get(part, part) for part in parts)


def _models(members: list[Member]) -> list[Model]:
    """Members of equal method and settings are seeds of one model."""
    keyed: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        settings = json.dumps(_settings(member.run), sort_keys=True, default=str)
        name = name_of(member.run.method, member.method)
        keyed.setdefault((name, settings), []).append(member)
    models = []
    for name, keys in groupby(sorted(keyed, key=lambda key: key[0]), key=lambda key: key[0]):
        variants = [keyed[key] for key in keys]
        for label, variant in zip(_labels(name, variants), variants, strict=True):
            seeds = sorted(variant, key=lambda member: member.run.seed)
            models.append(Model(label, tuple(seeds)))
    order = {id(member): place for place, member in enumerate(members)}
    return sorted(models, key=lambda model: min(order[id(m)] for m in model.members))


def _labels(name: str, variants: list[list[Member]]) -> list[str]:
    """Variants of one method are told apart by the settings in which they differ."""
    if len(variants) == 1:
        return [name]
    settings = [_settings(variant[0].run) for variant in variants]
    keys = sorted({key for s in settings for key in s})
    differing = [key for key in keys if len({repr(s.get(key)) for s in settings}) > 1]
    usual = {key: _most_common([s.get(key) for s in settings]) for key in differing}
    labels = []
    for number, setting in enumerate(settings, start=1):
        told = differing
        if len(differing) > MOST_TOLD:
            # among many settings, those in which this one is not like most
            told = [key for key in differing if setting.get(key) != usual[key]]
        words = [f"{key.split('.')[-1]}={setting.get(key)}" for key in told[:MOST_TOLD]]
        label = f"{name} ({', '.join(words)})" if words else name
        labels.append(f"{label} #{number}" if len(told) > MOST_TOLD else label)
    return labels


def _most_common(values: list[Any]) -> Any:
    """The value that most have; the first of them among equals."""
    return max(values, key=values.count)
