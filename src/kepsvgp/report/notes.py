"""What a fair reader must know before comparing: what is missing, unequal or reduced."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kepsvgp.data.benchmark import read_notes
from kepsvgp.paper.notes import RULES
from kepsvgp.report.examples import Source
from kepsvgp.report.models import Comparison

OTHER_DATA = {"ood": "out-of-distribution", "shift": "shifted"}


def notes_on(comparison: Comparison, source: Source) -> tuple[str, ...]:
    """The notes on a comparison and its data, each once."""
    found = (
        "The share answered on each card is chosen with the test labels in hand; "
        "in use, choose the threshold on held-out data.",
        *_checkpoint(comparison),
        *_unequal(comparison),
        *_not_shown(comparison),
        *_not_evaluated(comparison),
        *_without_predictions(comparison),
        *_on_data(comparison, source),
    )
    return tuple(dict.fromkeys(found))


def _on_data(comparison: Comparison, source: Source) -> Iterator[str]:
    """What was reduced, generated or missing, of the sets that some model was evaluated on."""
    then = (note for run in comparison.runs for note in read_notes(run.record()["notes"]))
    for note in (*then, *source.notes):
        if note.about is None or comparison.splits(f"{note.about}/"):
            yield f"{note.text[:1].upper()}{note.text[1:].rstrip('.')}."


def number(count: int, thing: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _checkpoint(comparison: Comparison) -> Iterator[str]:
    rules = sorted({member.checkpoint for member in comparison.trained})
    words = [RULES.get(rule, f"of the checkpoint '{rule}'") for rule in rules]
    if words:
        yield f"All numbers are those {' or '.join(words)}."


def _unequal(comparison: Comparison) -> Iterator[str]:
    """Models that differ in seeds or epochs; an ensemble is one model, whatever it is made of."""
    single = [model for model in comparison.models if model.num_models == 1]
    seeds = {model.label: number(len(model.members), "seed") for model in single}
    if len(set(seeds.values())) > 1:
        yield f"The models have different numbers of seeds: {_pairs(seeds)}."
    epochs = {m.label: m.trained[0].config.train.epochs for m in comparison.models if m.trained}
    if len(set(epochs.values())) > 1:
        yield f"The models were trained for different numbers of epochs: {_pairs(epochs)}."


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{label} {value}" for label, value in values.items())


def _not_shown(comparison: Comparison) -> Iterator[str]:
    for run in comparison.runs:
        if (missing := run.unfinished()) is not None:
            yield f"The training of {run.path.name} {missing}."
    if comparison.not_evaluated:
        names = _few([run.path.name for run in comparison.not_evaluated])
        yield f"Trained but not evaluated, and so not shown: {names} (kepsvgp evaluate RUN)."
    yield from comparison.notes


def _few(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _not_evaluated(comparison: Comparison) -> Iterator[str]:
    """Sets of other data on which some models, or all, have no numbers."""
    for kind, name in OTHER_DATA.items():
        splits = comparison.splits(f"{kind}/")
        if not splits and comparison.runs:
            yield f"No {name} data were evaluated (kepsvgp evaluate RUN --splits {kind})."
        lacking: dict[tuple[str, ...], list[str]] = {}
        for model in comparison.models:
            absent = [s for s in splits if any(s not in member.splits for member in model.members)]
            if absent:
                bare = tuple(split.removeprefix(f"{kind}/") for split in absent)
                lacking.setdefault(bare, []).append(model.label)
        for sets, labels in lacking.items():
            verb = "was" if len(labels) == 1 else "were"
            yield f"{_few(labels)} {verb} not evaluated on: {_few(sets)} ({name})."


def _without_predictions(comparison: Comparison) -> Iterator[str]:
    for model in comparison.models:
        seeds = [str(member.seed) for member in model.members if member.test is None]
        if seeds:
            yield (
                f"{model.label} has no usable test predictions for seed {', '.join(seeds)}: none "
                "were kept, or they are not finite."
            )
