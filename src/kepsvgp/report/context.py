"""What the template of the page is given for each benchmark: words and numbers, no HTML."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kepsvgp.data.sets.foreign import distance
from kepsvgp.metrics.registry import METRICS, OF_A_SET, OF_OTHER_DATA, OOD_SCORES, Metric
from kepsvgp.report.examples import Source
from kepsvgp.report.models import Comparison, Model
from kepsvgp.report.notes import notes_on, number
from kepsvgp.report.summary import Table, Verdict, accepted_risk, leaders, metric_table, verdict

NUM_COLOURS = 8
STATES = {"calibrated": "good", "too few": "", "slightly off": "middling", "off": "bad"}


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
    made_of: str
    coverage: float | None
    coverage_text: str
    coverage_says: str
    facts: tuple[Fact, ...]


class TextRow(NamedTuple):
    """A line of a table of words; a model's has its colour."""

    label: str
    cells: tuple[str, ...]
    colour: int | None = None


class TextTable(NamedTuple):
    """A table whose cells are already words; the first heading is that of the labels."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[TextRow, ...]


class BenchmarkContext(NamedTuple):
    """Everything the template says about one benchmark."""

    title: str
    facts: tuple[str, ...]
    lead: str
    models: int
    has_seeds: bool
    cards: tuple[Card, ...]
    notes: tuple[str, ...]
    table: Table
    more: tuple[tuple[str, Table], ...]
    cost: TextTable | None
    checkpoints: TextTable | None
    runs: TextTable | None


def benchmark_context(comparison: Comparison, source: Source) -> BenchmarkContext:
    """The words and numbers of one benchmark."""
    models = comparison.models
    risk = accepted_risk(comparison)
    verdicts = {model.label: verdict(model, risk=risk) for model in models}
    metrics = [m for m in OF_A_SET if m.name != "mcc" or comparison.num_classes == 2]
    return BenchmarkContext(
        title=comparison.title,
        facts=_facts(comparison),
        lead=_lead(leaders(models), len(models), verdicts),
        models=len(models),
        has_seeds=any(len(model.members) > 1 for model in models),
        cards=tuple(
            _card(place % NUM_COLOURS, model, verdicts[model.label])
            for place, model in enumerate(models)
        ),
        notes=notes_on(comparison, source),
        table=metric_table(comparison, "test", metrics),
        more=tuple(_more(comparison, metrics)),
        cost=_cost(models) if comparison.runs else None,
        checkpoints=_checkpoints(models),
        runs=_runs(comparison) if comparison.runs else None,
    )


def _more(comparison: Comparison, metrics: Sequence[Metric]) -> Iterator[tuple[str, Table]]:
    """Tables of foreign sets, of groups of the test set, and by the models' own scores."""
    by_score = [METRICS["ood_auroc"], *(METRICS[f"ood_auroc_{name}"] for name in OOD_SCORES)]
    for split in comparison.splits("ood/"):
        where = f"{split.removeprefix('ood/')} ({distance(split)}) against the test set"
        yield f"Out of distribution: {where}", metric_table(comparison, split, OF_OTHER_DATA)
        found = metric_table(comparison, split, by_score)
        if len(found.metrics) > 1:
            yield f"AUROC by confidence and by other scores: {where}", found
    for split in comparison.splits("group/"):
        sizes = {int(size) for model in comparison.models for size in model.values(split, "count")}
        caption = f"Group {split.removeprefix('group/')}, {_listed([*map(str, sizes)])} examples"
        yield caption, metric_table(comparison, split, metrics)
    for split in comparison.splits("score"):
        yield "Ranked by the models' own scores", metric_table(comparison, split, metrics)


def _facts(comparison: Comparison) -> tuple[str, ...]:
    facts = [comparison.title]
    if comparison.test is not None:
        facts += [f"{len(comparison.test.labels):,} test examples"]
        facts += [f"{comparison.num_classes} classes"]
    facts.append(number(len(comparison.models), "model"))
    if not comparison.runs:
        return tuple(facts)
    shown = {member.seed for member in comparison.members}
    trained = shown | {run.config().seed for run in comparison.not_evaluated}
    seeds = number(len(trained), "seed")
    return (*facts, seeds if shown == trained else f"{seeds} trained, {len(shown)} shown")


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _lead(best: Sequence[Model], count: int, verdicts: dict[str, Verdict | None]) -> str:
    """The answer in a few sentences, about the models that rank their own mistakes best."""
    found = [known for model in best if (known := verdicts[model.label]) is not None]
    if not found:
        return "The runs hold no predictions of the test set, so the tables below are all there is."
    aurc = METRICS["aurc"]
    texts = [aurc.text(float(np.mean(model.values("test", aurc.name)))) for model in best]
    names = [model.label for model in best]
    if count == 1:
        return f"It {_answers(found)}. {_probabilities(found[0])}."
    if len(best) == 1:
        ranks = f"{names[0]} ranks its own mistakes best (AURC {texts[0]})"
        return f"{ranks} and {_answers(found)}. {_probabilities(found[0])}."
    span = texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
    return (
        f"No model ranks its own mistakes clearly best: {_listed(names)} (AURC {span}) cannot be "
        f"told apart. They {_answers(found)}."
    )


def _answers(found: Sequence[Verdict]) -> str:
    risk = _share(found[0].risk, 0)
    least, most = (_share(pick(v.coverage for v in found)) for pick in (min, max))
    if max(v.coverage for v in found) == 0:
        return f"cannot keep errors below {risk}, however few inputs are answered"
    span = most if least == most else f"{least} to {most}"
    return f"can answer {span} of inputs with at most {risk} errors"


def _probabilities(found: Verdict) -> str:
    match found.calibration:
        case "too few":
            return "The test set has too few examples to say whether its probabilities are right"
        case "calibrated":
            says = "no further from the truth than chance explains"
        case _:
            says = f"it says {_share(found.confidence)} and is right {_share(found.accuracy)}"
    return f"Its probabilities are {found.words}: {says}"


def _card(colour: int, model: Model, found: Verdict | None) -> Card:
    accuracy, aurc = (_measured(model, name) for name in ("accuracy", "aurc"))
    members = len(model.members)
    made_of = number(members, "seed") if members > 1 else ""
    if model.num_models != 1:
        made_of = number(model.num_models, "model") if model.num_models else ""
    if found is None:
        return Card(model.label, colour, made_of, None, "", "", (accuracy, aurc))
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
    share = _share(found.coverage, 0 if found.coverage in (0, 1) else 1)
    facts = (accuracy, calibration, aurc)
    return Card(model.label, colour, made_of, found.coverage, share, says, facts)


def _measured(model: Model, name: str) -> Fact:
    metric, values = METRICS[name], model.values("test", name)
    return Fact(metric.title, _text(name, values) if values else "not measured")


def _text(name: str, values: Sequence[float]) -> str:
    metric = METRICS[name]
    return metric.text(float(np.mean(values))) + ("%" if metric.is_share else "")


def _cost(models: Sequence[Model]) -> TextTable:
    rows = []
    for place, model in enumerate(models):
        histories = [history for member in model.trained if (history := member.run.history())]
        training = [sum(float(e.get("seconds", 0.0)) for e in history) for history in histories]
        prediction = model.values("test", "seconds_per_1000")
        parameters = model.trained[0].run.record().get("parameters")
        together = model.num_models
        times = {None: " per model", 1: ""}.get(together, f" × {together} models")
        cells = (
            duration(float(np.mean(training))) + times if training else "not recorded",
            duration(float(np.mean(prediction))) if prediction else "not recorded",
            f"{parameters:,}{times}" if parameters is not None else "not recorded",
        )
        rows.append(TextRow(model.label, cells, place % NUM_COLOURS))
    headings = ("Model", "Training time", "Prediction per 1,000", "Parameters")
    return TextTable("Cost", headings, tuple(rows))


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
    metrics = ("accuracy", "aurc", "ece", "nll")
    rows = []
    for place, model in enumerate(models):
        for checkpoint in model.checkpoints:
            values = [model.values("test", name, checkpoint=checkpoint) for name in metrics]
            if any(values):
                is_shown = checkpoint == model.members[0].checkpoint
                first = f"{checkpoint} (shown)" if is_shown else checkpoint
                texts = [_text(n, v) if v else "–" for n, v in zip(metrics, values, strict=True)]
                rows.append(TextRow(model.label, (first, *texts), place % NUM_COLOURS))
    if len(rows) <= len(models):
        return None
    caption = "Other checkpoints of the same runs: how much of the result is the choice of epoch"
    titles = (METRICS[name].title for name in metrics)
    return TextTable(caption, ("Model", "Checkpoint", *titles), tuple(rows))


def _runs(comparison: Comparison) -> TextTable:
    """Where the numbers come from."""
    rows = {}
    for member in comparison.trained:
        run, config = member.run, member.config
        versions = ", ".join(f"{name} {value}" for name, value in config.versions.items())
        cells = (config.method, config.seed, member.checkpoint, len(run.history()), versions)
        rows[run] = TextRow(run.path.name, tuple(map(str, cells)))
    headings = ("Run", "Method", "Seed", "Checkpoint", "Epochs", "Made with")
    return TextTable("Runs", headings, tuple(rows.values()))
