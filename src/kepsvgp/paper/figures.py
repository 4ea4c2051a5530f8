"""The data of the paper's figures, read back from runs; how they are drawn is not known here."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from numpy import ndarray
from torch import Tensor

from kepsvgp.files import write_atomic
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import Missing, Reader, Reason
from kepsvgp.paper.declarations import TITLES, MethodRow
from kepsvgp.paper.notes import notes_of
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.records import OutputRoot

# what is shown of every corruption
BARS = ("accuracy", "aurc", "ece", "nll")


Values = TypeVar("Values", Tensor, ndarray)


class FigureData(NamedTuple):
    """What a figure shows.

    Attributes:
        planned: The figure and its runs.
        data: Figure 2: `{metric: {model: {kind: one value per seed}}}`; 3: `{model: {group:
            confidences}}`; 4: `{model: content of inspect.json}`; 5: `{model: {kind: one value
            per seed}}`. In the paper's units.
        notes: What was reduced, generated or is missing, models that failed included.
    """

    planned: PlannedExhibit
    data: dict[str, Any]
    notes: list[str]

    @property
    def title(self) -> str:
        """Number, subject and data set."""
        return self.planned.exhibit.title_for(self.planned.study.dataset)


def figure_data(planned: PlannedExhibit, root: OutputRoot) -> FigureData:
    """The data of a figure; models whose runs failed are left out, and said to be."""
    notes, reader = notes_of(planned, root), Reader(planned, root)
    match planned.exhibit.name:
        case "figure2":
            data = _by_kind(reader, notes, "shift@5", BARS)
        case "figure3":
            data = _of_first_seeds(reader, notes, "confidences", _confidences)
        case "figure4":
            data = _of_first_seeds(reader, notes, "spectra", _spectra)
        case _:
            (data,) = _by_kind(reader, notes, "shift", ("aurc",)).values()
    return FigureData(planned, data, notes)


def write_figure_data(planned: PlannedExhibit, root: OutputRoot) -> FigureData:
    """Reads the data of a figure and writes them to `figures/`."""
    found = figure_data(planned, root)
    content = {
        "figure": planned.exhibit.name,
        "title": found.title,
        "study": planned.study.described(),
        "notes": found.notes,
        "data": found.data,
    }
    file = root.path / "figures" / f"{planned.stem}.json"
    write_atomic(file, json.dumps(content, ensure_ascii=False) + "\n")
    lines = [f"# {found.title}", "", *(f"- {note}" for note in found.notes)]
    lines += ["", f"![{found.title}]({planned.stem}.png)", ""]
    write_atomic(file.with_suffix(".md"), "\n".join(lines))
    return found


def _by_kind(
    reader: Reader, notes: list[str], selector: str, metrics: Sequence[str]
) -> dict[str, Any]:
    """By metric, model and kind of shift: a mean over the severities for each seed."""
    panels: dict[str, Any] = {METRICS[metric].title: {} for metric in metrics}
    for row, seed in product(reader.planned.rows, reader.planned.seeds):
        try:
            names, measured = reader.splits(row, seed, selector), reader.metrics(row, seed)
        except Missing as missing:
            notes.append(f"{row.title}, seed {seed}: {missing}.")
            continue
        for metric, (kind, splits) in product(metrics, shift_kinds(names).items()):
            values = panels[METRICS[metric].title].setdefault(row.title, {})
            each = [measured[name][metric] for name in splits.values()]
            values.setdefault(kind, []).append(METRICS[metric].factor * sum(each) / len(each))
    return panels


def _of_first_seeds(
    reader: Reader, notes: list[str], what: str, read: Callable[[Reader, MethodRow], Any]
) -> dict[str, Any]:
    """What belongs to one trained model: that of the first seed of each row."""
    found = {}
    for row in reader.planned.rows:
        try:
            found[row.title] = read(reader, row)
        except Missing as missing:
            notes.append(f"{row.title}: {missing}.")
    if reader.planned.study.seeds > 1:
        notes.append(f"The {what} are those of the first seed.")
    return found


def _confidences(reader: Reader, row: MethodRow) -> dict[str, list[float]]:
    familiar = reader.prediction(row, 0, "test")
    foreign = {
        TITLES.get(name.removeprefix("ood/"), name): reader.prediction(row, 0, name).confidence
        for name in reader.splits(row, 0, "ood")
    }
    parts = by_group(familiar.confidence, familiar.predicted == familiar.targets, foreign)
    return {name: [round(value, 4) for value in part.tolist()] for name, part in parts.items()}


def by_group(confidence: Values, correct: Any, foreign: Mapping[str, Values]) -> dict[str, Values]:
    """Confidences of the right and of the wrong answers, and of each set of other data."""
    known = {"ID correct": confidence[correct], "ID wrong": confidence[~correct]}
    return known | {f"OOD {name}": values for name, values in foreign.items()}


def _spectra(reader: Reader, row: MethodRow) -> dict[str, Any]:
    found = reader.run(row, 0).inspection(reader.checkpoint(row, 0))
    if found is None:
        raise Missing(Reason("not done", "not inspected yet"))
    return found.model_dump()


def shift_kinds(splits: Iterable[str]) -> dict[str, dict[int | None, str]]:
    """The shifted sets by their kind and severity, which is None where there are no degrees."""
    kinds: dict[str, dict[int | None, str]] = {}
    for split in splits:
        kind, severity = shift_kind(split)
        kinds.setdefault(kind, {})[severity] = split
    return kinds


def shift_kind(split: str) -> tuple[str, int | None]:
    """`fog` and 5 of `shift/fog/5`; a shift without degrees is its own kind."""
    name = split.removeprefix("shift/")
    kind, _, severity = name.rpartition("/")
    return (kind, int(severity)) if kind and severity.isdigit() else (name, None)
