"""What a reader must know before the numbers: what was reduced, generated or is missing."""

from kepsvgp.config.file import load_config
from kepsvgp.config.variants import TITLES as VARIANTS
from kepsvgp.files import read_json
from kepsvgp.paper.declarations import DATASETS, TITLES, title_of
from kepsvgp.paper.plan import PlannedExhibit
from kepsvgp.paper.records import OutputRoot
from kepsvgp.paper.study import Study, config_name

RULES = {
    "score": "of the epoch with the best validation score",
    "nll": "of the epoch with the best validation NLL",
    "last": "of the last epoch",
}


def notes_of(planned: PlannedExhibit, root: OutputRoot) -> list[str]:
    """All there is to say of a table or figure, in sentences."""
    exhibit, study = planned.exhibit, planned.study
    seeds = f"{study.seeds} {'seed' if study.seeds == 1 else 'seeds'}"
    notes = [f"{seeds} (the paper: 5)." if exhibit.is_published else f"{seeds}."]
    notes.append(f"Variant {study.variant}: {VARIANTS[study.variant]}.")
    if exhibit.is_published and study.dataset not in exhibit.datasets:
        names = ", ".join(TITLES[name] for name in exhibit.datasets)
        notes.append(
            f"The paper has this for {names}; for {title_of(study.dataset)} it printed no numbers."
        )
    if study.budget != "paper" and study.dataset in DATASETS:
        notes.append(f"Configuration {study.budget}, not the paper's: {_reduced(study)}.")
    if study.overrides:
        notes.append(f"Changed on request: {', '.join(study.overrides)}.")
    notes.append(f"Weights measured: those {RULES[study.checkpoint_of(study.base())]}.")
    notes += [f"{text[0].upper()}{text[1:]}." for text in data_notes(planned, root)]
    notes += [*exhibit.notes, *_timing_notes(planned, root)]
    if planned.settings:
        notes.append(f"Architecture of SGPA's program: {', '.join(planned.settings)}.")
        notes += exhibit.paper_notes.get(study.dataset, ())
    elif exhibit.paper_settings:
        notes.append("The architecture is that of the profile, not that of SGPA's program.")
    return notes


def data_notes(planned: PlannedExhibit, root: OutputRoot) -> list[str]:
    """What the runs say about their data, but for sets that are not shown here."""
    found = dict.fromkeys(
        note for task in planned.tasks.values() for note in root.run(task.name).record.notes
    )
    return [n.text for n in found if n.about is None or n.about in planned.exhibit.needs]


def _timing_notes(planned: PlannedExhibit, root: OutputRoot) -> list[str]:
    if planned.timing is None or not root.timing_file(planned.timing).exists():
        return []
    content = read_json(root.timing_file(planned.timing), "threads", "device")
    threads = content["threads"]
    return [f"Times are from {content['device']}, {threads} thread{'s' * (threads != 1)}."]


def _reduced(study: Study) -> str:
    """What differs from the paper's configuration, `key=ours (paper's)`."""
    ours, papers = (
        load_config(source, variant=study.variant).identity()
        for source in (study.source, config_name(study.dataset, "paper"))
    )
    changes = [
        f"{key}={value} (paper {papers.get(key)})"
        for key, value in ours.items()
        if value != papers.get(key)
    ]
    return ", ".join(changes) or "the same settings"
