"""From tables and figures to the runs that fill them, as one value that everything else is handed.

A plan is derived once: for each table or figure and data set the task of every row and seed,
and over all of them each run once, with everything that is asked of it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kepsvgp.config.plugins import find, find_method, short_name
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.paper.declarations import (
    DATASETS,
    FOREIGN,
    SHIFTED,
    TEXTS,
    Exhibit,
    MethodRow,
    PaperTable,
)
from kepsvgp.paper.study import Study, run_name


class Evaluation(NamedTuple):
    """Something to measure of a trained run.

    `splits` is `test`, `val`, `shift`, `ood`, or `shift@5` for the worst of each corruption.
    """

    method: str
    checkpoint: str
    splits: str

    @property
    def key(self) -> str:
        """Its name in a run's record."""
        return "/".join(self)


class Task(BaseModel):
    """A run, and everything that is asked of it.

    Attributes:
        name: Its folder under the output root.
        config: What is trained.
        evaluations: What is predicted and measured afterwards.
        inspected: The checkpoint whose attention kernels are looked at; None for none.
        after: Tasks that must be done before, as this one starts from their weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    config: RunConfig
    evaluations: tuple[Evaluation, ...] = ()
    inspected: str | None = None
    after: tuple[str, ...] = ()


class Timing(BaseModel):
    """Stopwatch measurements that go together.

    Attributes:
        name: Its file under `timings/`.
        configs: The configuration of each row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    configs: dict[str, RunConfig]


@dataclass(frozen=True)
class PlannedExhibit:
    """One table or figure for one data set.

    Attributes:
        exhibit: The declaration.
        study: The data set, budget and seeds.
        rows: Its rows for this data set.
        settings: Overrides that belong to the table itself, in the paper's profile.
        tasks: The task of each row, by key, and seed.
        before: Runs that others start from.
        timing: What is measured with a stopwatch; None for nothing.
    """

    exhibit: Exhibit
    study: Study
    rows: tuple[MethodRow, ...]
    settings: tuple[str, ...]
    tasks: Mapping[tuple[str, int], Task]
    before: tuple[Task, ...]
    timing: Timing | None

    @property
    def of_study(self) -> str:
        """Data set, budget and variant, for the names of files."""
        parts = [short_name(self.study.dataset), self.study.budget]
        return "-".join(parts if self.study.variant == "ours" else [*parts, self.study.variant])

    @property
    def stem(self) -> str:
        """Name of its files."""
        # a study of ours has one data set and budget
        parts = [self.exhibit.name] if self.exhibit.config else [self.exhibit.name, self.of_study]
        return "-".join(parts if self.study.checkpoint is None else [*parts, self.study.checkpoint])

    @property
    def seeds(self) -> range:
        """The seeds of every row."""
        return range(self.study.seeds)


@dataclass(frozen=True)
class Plan:
    """What a request takes: its tables and figures, and each of their runs and times once.

    What a run starts from stands before it.
    """

    exhibits: tuple[PlannedExhibit, ...]
    tasks: tuple[Task, ...]
    timings: tuple[Timing, ...]


def make_plan(
    exhibits: Sequence[Exhibit], dataset: str | None, study_of: Callable[[Exhibit, str], Study]
) -> Plan:
    """Each table and figure for one data set, or for all that the paper has it for."""
    if dataset is not None:
        # refuses one that there is not
        find("kepsvgp.datasets", dataset)
    planned = tuple(
        plan_exhibit(exhibit, study_of(exhibit, name))
        for exhibit in exhibits
        for name in (exhibit.datasets if dataset is None else (dataset,))
    )
    tasks = merged(task for each in planned for task in (*each.before, *each.tasks.values()))
    timings = {each.timing.name: each.timing for each in planned if each.timing is not None}
    return Plan(planned, tuple(tasks), tuple(timings.values()))


def plan_exhibit(exhibit: Exhibit, study: Study) -> PlannedExhibit:
    """The runs of a table or figure for one data set."""
    _check_fits(exhibit, study.dataset)
    rows = exhibit.rows_for(study.dataset)
    settings = exhibit.paper_settings.get(study.dataset, ()) if study.budget == "paper" else ()
    tasks: dict[tuple[str, int], Task] = {}
    before: dict[str, Task] = {}
    for row in rows:
        # read once: seeds differ in nothing else
        config = study.config(row, settings)
        for seed in range(study.seeds):
            seeded = config.model_copy(update={"seed": seed})
            first, tasks[row.key, seed] = _row_tasks(exhibit, row, study, seeded)
            before |= {task.name: task for task in first}
    timing = None
    if isinstance(exhibit, PaperTable) and exhibit.is_timed:
        timing = timing_of({row.key: tasks[row.key, 0].config for row in rows})
    return PlannedExhibit(exhibit, study, rows, settings, tasks, tuple(before.values()), timing)


def _check_fits(exhibit: Exhibit, dataset: str) -> None:
    """Refuses a data set that lacks what a table or figure is about."""
    having = {
        "images": [name for name in DATASETS if name not in TEXTS],
        "shift": list(SHIFTED),
        "ood": list(FOREIGN),
    }
    words = {
        "images": "the concatenation merge, which texts of different lengths cannot have",
        "shift": "shifted test sets",
        "ood": "out-of-distribution data",
    }
    for need in exhibit.needs:
        # of data of one's own, a run will tell
        is_ours = dataset in DATASETS or need == "ood"
        if is_ours and dataset not in having[need]:
            raise UserError(
                f"{exhibit.name} is about {words[need]}; --dataset must be one of "
                f"{', '.join(having[need])}, got {dataset}."
            )


def _row_tasks(
    exhibit: Exhibit, row: MethodRow, study: Study, config: RunConfig
) -> tuple[list[Task], Task]:
    """The run that a row's run starts from, if there is one, and the row's run itself."""
    method, before = find_method(config.method), []
    first = method.first_step(config)
    if first is not None:
        first = find_method(first.method).normalised(first)
        before = [Task(name=run_name(first), config=first)]
        # named below the output root, in which every task runs
        config = method.after(config, Path(before[0].name))
    checkpoint = study.checkpoint_of(config)
    task = Task(
        name=run_name(config),
        config=config,
        evaluations=tuple(Evaluation(row.method, checkpoint, s) for s in exhibit.evaluated),
        inspected=checkpoint if exhibit.is_inspected else None,
        after=tuple(each.name for each in before),
    )
    return before, task


def merged(tasks: Iterable[Task]) -> list[Task]:
    """Tasks of the same run as one, in order of first appearance."""
    by_name: dict[str, Task] = {}
    for task in tasks:
        known = by_name.get(task.name)
        if known is None:
            by_name[task.name] = task
            continue
        by_name[task.name] = known.model_copy(
            update={
                "evaluations": tuple(dict.fromkeys((*known.evaluations, *task.evaluations))),
                "inspected": known.inspected or task.inspected,
            }
        )
    return list(by_name.values())


def timing_of(configs: Mapping[str, RunConfig]) -> Timing:
    """Names measurements after the configurations that they compare."""
    text = "\n".join(
        f"{row} {config.model_dump_json(exclude={'versions', 'seed'})}"
        for row, config in configs.items()
    )
    data = short_name(next(iter(configs.values())).data.name)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return Timing(name=f"{data}-{digest}", configs=dict(configs))
