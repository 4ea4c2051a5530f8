"""What the template of the page is given for each benchmark: words and numbers, no HTML."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kepsvgp.data.benchmark import Note
from kepsvgp.report.examples import Source
from kepsvgp.report.models import Comparison, Model
from kepsvgp.report.summary import (
    METRICS,
    OOD_METRICS,
    Table,
    Verdict,
    accepted_risk,
    metric_table,
    verdict,
)
from kepsvgp.runs.folder import RunFolder

NUM_COLOURS = 8
STATES = {"calibrated": "good", "too few": "", "slightly off": "middling", "off": "bad"}
RULES = {
    "score": "the epoch of the best validation score",
    "nll": "the epoch of the best validation NLL",
    "last": "the last epoch",
}


class Fact(NamedTuple):
    """A line of a card."""

    name: str
    value: str
    note: str = ""
    state: str = ""


class Card(NamedTuple):
    """The verdict on one model, in words."""

    label: str
    colour: int
    seeds: int
    coverage: float | None
    coverage_text: str
    coverage_says: str
    facts: tuple[Fact, ...]


class TextRow(NamedTuple):
    """A line of a table of words."""

    label: str
    colour: int
    cells: tuple[str, ...]


class TextTable(NamedTuple):
    """A table whose cells are already words."""

    headings: tuple[str, ...]
    rows: tuple[TextRow, ...]


class RunLine(NamedTuple):
    """Where numbers come from."""

    name: str
    method: str
    seed: int
    checkpoint: str
    epochs: int
    versions: str


class BenchmarkContext(NamedTuple):
    """Everything the template says about one benchmark."""

    title: str
    facts: tuple[str, ...]
    lead: str
    models: int
    several: bool
    several_models: bool
    cards: tuple[Card, ...]
    notes: tuple[str, ...]
    table: Table
    ood: tuple[Table, ...]
    cost: TextTable
    checkpoints: TextTable | None
    runs: tuple[RunLine, ...]


def benchmark_context(comparison: Comparison, source: Source) -> BenchmarkContext:
    """The words and numbers of one benchmark."""
    risk = accepted_risk(comparison)
    verdicts = [verdict(model, risk=risk) for model in comparison.models]
    several = max(len(model.members) for model in comparison.models) > 1
    metrics = [m for m in METRICS if m.key != "mcc" or comparison.num_classes == 2]
    return BenchmarkContext(
        title=comparison.title,
        facts=_facts(comparison),
        lead=_lead(comparison, verdicts),
        models=len(comparison.models),
        several=several,
        several_models=len(comparison.models) > 1,
        cards=tuple(
            _card(place, model, found)
            for place, (model, found) in enumerate(zip(comparison.models, verdicts, strict=True))
        ),
        notes=_notes(comparison, source),
        table=metric_table(comparison, "test", metrics),
        ood=tuple(
            metric_table(comparison, split, OOD_METRICS) for split in comparison.splits("ood/")
        ),
        cost=_cost(comparison.models),
        checkpoints=_checkpoints(comparison.models),
        runs=_runs(comparison),
    )


def _facts(comparison: Comparison) -> tuple[str, ...]:
    facts = [comparison.title]
    if comparison.test is not None:
        facts += [f"{len(comparison.test.labels):,} test examples"]
        facts += [f"{comparison.num_classes} classes"]
    facts.append(_number(len(comparison.models), "model"))
    seeds = len({member.run.seed for member in comparison.members})
    return (*facts, _number(seeds, "seed"))


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def _lead(comparison: Comparison, verdicts: Sequence[Verdict | None]) -> str:
    """The answer in two sentences, about the model that ranks its own mistakes best."""
    known = [
        (float(np.mean(values)), model, found)
        for model, found in zip(comparison.models, verdicts, strict=True)
        if found is not None and (values := model.values("test", "aurc"))
    ]
    if not known:
        return "The runs hold no predictions of the test set, so the tables below are all there is."
    known.sort(key=lambda entry: entry[0])
    aurc, model, found = known[0]
    best = "It" if len(known) == 1 else model.label
    ranks = ""
    if len(known) > 1:
        doubt = _doubt(model, known[1][1])
        ranks = f" ranks its own mistakes best (AURC {aurc:.4f}{doubt}) and"
    risk = _share(found.risk, 0)
    answers = (
        f"can answer {_share(found.coverage)} of inputs with at most {risk} errors"
        if found.coverage > 0
        else f"cannot keep its errors below {risk}, however few inputs it answers"
    )
    return f"{best}{ranks} {answers}. {_probabilities(found)}."


def _doubt(best: Model, second: Model) -> str:
    """Says so where the lead over the second best is within the spread over seeds, or nothing."""
    ours, theirs = best.values("test", "aurc"), second.values("test", "aurc")
    if f"{np.mean(ours):.4f}" == f"{np.mean(theirs):.4f}":
        return f", as has {second.label}"
    if min(len(ours), len(theirs)) < 2:
        return ""
    spread = max(np.std(ours, ddof=1), np.std(theirs, ddof=1))
    if np.mean(theirs) - np.mean(ours) > spread:
        return ""
    return f"; {second.label} is within one standard deviation"


def _probabilities(found: Verdict) -> str:
    match found.calibration:
        case "too few":
            return "Whether its probabilities are calibrated, so few test examples cannot tell"
        case "calibrated":
            says = "no further from the truth than chance explains"
        case _:
            says = f"it says {_share(found.confidence)} and is right {_share(found.accuracy)}"
    return f"Its probabilities are {found.words}: {says}"


def _card(place: int, model: Model, found: Verdict | None) -> Card:
    if found is None:
        facts = _stored_facts(model)
        return Card(model.label, place % NUM_COLOURS, len(model.members), None, "", "", facts)
    risk = _share(found.risk, 0)
    if found.coverage >= 1:
        says = f"of inputs answered: its errors stay within {risk} without abstaining"
    elif found.coverage > 0:
        says = f"of inputs answered when at most {risk} errors are accepted"
    else:
        says = f"answered: no threshold keeps its errors within {risk}"
    calibration = Fact(
        "Calibration",
        found.words,
        f"says {_share(found.confidence)}, is right {_share(found.accuracy)}; "
        f"ECE {_share(found.ece)}, of which chance explains up to {_share(found.noise)}",
        STATES[found.calibration],
    )
    accuracy, *others = _stored_facts(model)
    facts = (accuracy, calibration, *others)
    return Card(
        model.label,
        place % NUM_COLOURS,
        len(model.members),
        found.coverage,
        _share(found.coverage, 0 if found.coverage in (0, 1) else 1),
        says,
        facts,
    )


def _stored_facts(model: Model) -> tuple[Fact, ...]:
    facts = []
    for metric in METRICS:
        values = model.values("test", metric.key)
        if metric.key in ("accuracy", "aurc"):
            unit = "%" if metric.percent else ""
            text = f"{metric.text(float(np.mean(values)))}{unit}" if values else "not measured"
            facts.append(Fact(metric.title, text))
    return tuple(facts)


def _notes(comparison: Comparison, source: Source) -> tuple[str, ...]:
    """What a fair reader must know before comparing, each remark once."""
    notes = [
        "The share answered on each card is chosen with the test labels in hand; "
        "in use, choose the threshold on held-out data."
    ]
    rules = {member.checkpoint for member in comparison.members}
    names = [RULES.get(rule, f"the checkpoint '{rule}'") for rule in sorted(rules)]
    notes.append(f"Shown is {' or '.join(names)}.")
    seeds = {model.label: len(model.members) for model in comparison.models}
    if len(set(seeds.values())) > 1:
        told = ", ".join(f"{label} {_number(n, 'seed')}" for label, n in seeds.items())
        notes.append(f"The models have different numbers of seeds: {told}.")
    epochs = {
        model.label: model.members[0].run.config.get("train", {}).get("epochs")
        for model in comparison.models
    }
    if len(set(epochs.values())) > 1:
        told = ", ".join(f"{label} {n}" for label, n in epochs.items())
        notes.append(f"The models were trained for different numbers of epochs: {told}.")
    notes += _stopped(comparison)
    notes += comparison.notes
    notes += _data_notes(comparison, [n for m in comparison.members for n in m.run.notes])
    notes += _missing(comparison)
    notes += _data_notes(comparison, source.notes)
    return tuple(dict.fromkeys(notes))


def _data_notes(comparison: Comparison, notes: Sequence[Note]) -> list[str]:
    """Remarks on the data, without those on shifted inputs where none were shown to a model."""
    is_shifted = bool(comparison.splits("shift/"))
    return [note.text for note in notes if is_shifted or note.about != "shift"]


def _stopped(comparison: Comparison) -> list[str]:
    """Runs whose training was interrupted."""
    runs = dict.fromkeys(member.run.folder for member in comparison.members)
    return [
        f"The training of {folder.name} {missing}."
        for folder in runs
        if (missing := RunFolder(folder).unfinished()) is not None
    ]


def _few(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _missing(comparison: Comparison) -> list[str]:
    notes = []
    for prefix, name in (("ood/", "out-of-distribution"), ("shift/", "shifted")):
        splits = comparison.splits(prefix)
        if not splits:
            notes.append(f"No {name} data were evaluated.")
        lacking: dict[tuple[str, ...], list[str]] = {}
        for model in comparison.models:
            absent = [s for s in splits if any(s not in member.splits for member in model.members)]
            if absent:
                bare = tuple(s.removeprefix(prefix) for s in absent)
                lacking.setdefault(bare, []).append(model.label)
        for sets, labels in lacking.items():
            verb = "was" if len(labels) == 1 else "were"
            notes.append(f"{_few(labels)} {verb} not evaluated on: {_few(sets)} ({name}).")
    for model in comparison.models:
        gone = [member.run.seed for member in model.members if member.test is None]
        if gone:
            told = ", ".join(map(str, gone))
            notes.append(
                f"{model.label} has no usable test predictions for seed {told}: none were kept, "
                "or they are not finite."
            )
    return notes


def _cost(models: Sequence[Model]) -> TextTable:
    rows = []
    for place, model in enumerate(models):
        training = [
            sum(float(epoch.get("seconds", 0.0)) for epoch in member.run.history)
            for member in model.members
            if member.run.history
        ]
        prediction = model.values("test", "seconds_per_1000")
        parameters = model.members[0].run.parameters
        together = model.members[0].num_models
        times = {None: " per model", 1: ""}.get(together, f" × {together} models")
        cells = (
            duration(float(np.mean(training))) + times if training else "not recorded",
            duration(float(np.mean(prediction))) if prediction else "not recorded",
            f"{parameters:,}{times}" if parameters is not None else "not recorded",
        )
        rows.append(TextRow(model.label, place % NUM_COLOURS, cells))
    return TextTable(("Training time", "Prediction per 1,000", "Parameters"), tuple(rows))


def duration(seconds: float) -> str:
    """A time span as a person would say it."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _checkpoints(models: Sequence[Model]) -> TextTable | None:
    """Test metrics at every evaluated checkpoint; None where there is only the one shown."""
    shown = [m for m in METRICS if m.key in ("accuracy", "aurc", "ece", "nll")]
    rows = []
    for place, model in enumerate(models):
        names = dict.fromkeys(name for member in model.members for name in member.run.metrics)
        for name in names:
            cells = []
            for metric in shown:
                values = [
                    value
                    for member in model.members
                    if isinstance(value := _at(member, name).get(metric.key), int | float)
                ]
                unit = "%" if metric.percent else ""
                cells.append(metric.text(float(np.mean(values))) + unit if values else "–")
            if any(cell != "–" for cell in cells):
                shown_here = name == model.members[0].checkpoint
                rule = f"{name} (shown)" if shown_here else name
                rows.append(TextRow(model.label, place % NUM_COLOURS, (rule, *cells)))
    if len(rows) <= len(models):
        return None
    return TextTable(tuple(metric.title for metric in shown), tuple(rows))


def _at(member, checkpoint: str) -> dict:
    return member.run.metrics.get(checkpoint, {}).get(member.method, {}).get("test", {})


def _runs(comparison: Comparison) -> tuple[RunLine, ...]:
    lines = {}
    for member in comparison.members:
        run = member.run
        versions = run.config.get("versions", {})
        lines[run.folder] = RunLine(
            name=run.folder.name,
            method=run.method,
            seed=run.seed,
            checkpoint=member.checkpoint,
            epochs=len(run.history),
            versions=", ".join(f"{name} {value}" for name, value in versions.items()),
        )
    return tuple(lines.values())
