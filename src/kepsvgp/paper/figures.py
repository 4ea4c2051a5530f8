"""The data of the paper's figures, read back from runs; how they are drawn is not known here."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.cells import Missing, Reader
from kepsvgp.paper.declarations import TITLES
from kepsvgp.paper.notes import notes_of
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.records import OutputRoot

# what figure 2 shows of every corruption
BARS = ("accuracy", "aurc", "ece", "nll")


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


class Answer(NamedTuple):
    """What one seed of a model has to say: its sets, and `{set: {metric: value}}`."""

    title: str
    names: list[str]
    measured: Mapping[str, Mapping[str, float]]


def figure_data(planned: PlannedExhibit, root: OutputRoot) -> FigureData:
    """The data of a figure; models whose runs failed are left out, and said to be."""
    notes = notes_of(planned, root)
    read = {
        "figure2": _shifts,
        "figure3": _confidences,
        "figure4": _spectra,
        "figure5": _mean_aurc,
    }[planned.exhibit.name]
    return FigureData(planned, read(Reader(planned, root), notes), notes)


def _answers(reader: Reader, notes: list[str], selector: str) -> Iterator[Answer]:
    """What every row and seed has to say about some sets; what is missing goes to the notes."""
    for row in reader.planned.rows:
        for seed in reader.planned.seeds:
            try:
                names = reader.splits(row, seed, selector)
                measured = reader.metrics(row, seed)
            except Missing as missing:
                notes.append(f"{row.title}, seed {seed}: {missing}.")
                continue
            yield Answer(row.title, names, measured)


def _shifts(reader: Reader, notes: list[str]) -> dict[str, Any]:
    panels: dict[str, Any] = {_title(metric): {} for metric in BARS}
    for title, names, measured in _answers(reader, notes, "shift@5"):
        for metric in BARS:
            values = panels[_title(metric)].setdefault(title, {})
            for name in names:
                value = measured[name][metric] * METRICS[metric].factor
                values.setdefault(_kind(name), []).append(value)
    return panels


def _mean_aurc(reader: Reader, notes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for title, names, measured in _answers(reader, notes, "shift"):
        for kind in dict.fromkeys(_kind(name) for name in names):
            each = [measured[name]["aurc"] for name in names if _kind(name) == kind]
            mean = METRICS["aurc"].factor * sum(each) / len(each)
            values.setdefault(title, {}).setdefault(kind, []).append(mean)
    return values


def _confidences(reader: Reader, notes: list[str]) -> dict[str, Any]:
    """Of the first seed: a confidence belongs to a model."""
    groups: dict[str, Any] = {}
    for row in reader.planned.rows:
        try:
            familiar = reader.prediction(row, 0, "test")
            foreign = {
                name: reader.prediction(row, 0, name) for name in reader.splits(row, 0, "ood")
            }
        except Missing as missing:
            notes.append(f"{row.title}: {missing}.")
            continue
        assert familiar.targets is not None
        correct = familiar.predicted == familiar.targets
        parts = {
            "ID correct": familiar.confidence[correct],
            "ID wrong": familiar.confidence[~correct],
        }
        for name, prediction in foreign.items():
            title = TITLES.get(name.removeprefix("ood/"), name)
            parts[f"OOD {title}"] = prediction.confidence
        groups[row.title] = {
            name: [round(value, 4) for value in part.tolist()] for name, part in parts.items()
        }
    if reader.planned.study.seeds > 1:
        notes.append("The confidences are those of the first seed.")
    return groups


def _spectra(reader: Reader, notes: list[str]) -> dict[str, Any]:
    spectra = {}
    for row in reader.planned.rows:
        try:
            found = reader.run(row, 0).inspection(reader.checkpoint(row, 0))
        except Missing as missing:
            notes.append(f"{row.title}: {missing}.")
            continue
        if found is None:
            notes.append(f"{row.title}: not inspected yet.")
        else:
            spectra[row.title] = found.model_dump()
    if reader.planned.study.seeds > 1:
        notes.append("The spectra are those of the first seed.")
    return spectra


def _kind(split: str) -> str:
    """`fog` of `shift/fog/5`; a shift without degrees is its own kind."""
    name = split.removeprefix("shift/")
    kind, _, severity = name.rpartition("/")
    return kind if severity.isdigit() else name


def _title(metric: str) -> str:
    return METRICS[metric].title
