"""From a table to the runs that fill it: which configurations, asked through which methods.

A run's folder is named after a hash of its complete configuration, so tables that need the
same run find the same folder, and a setting that cannot matter to a method (the rank of KEP
layers to a softmax model) does not make another run of it.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from kepsvgp.config.comparison import with_absolute_paths
from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.paper.declarations import (
    DATASETS,
    FOREIGN,
    SHIFTED,
    TEXTS,
    Figure,
    Row,
    Table,
)

Profile = Literal["paper", "small"]

# what may be asked of a run: its test or validation set, all shifted sets or the worst of each,
# other data
SELECTORS = ("test", "val", "shift", "shift@5", "ood")


class Ask(NamedTuple):
    """One question to a trained run: a method, a checkpoint and a selector of sets."""

    method: str
    checkpoint: str
    splits: str


class Task(BaseModel):
    """A run, and everything that is asked of it.

    Attributes:
        name: Its folder under the output root.
        config: What is trained.
        asks: What is predicted and measured afterwards.
        inspected: The checkpoint whose attention kernels are looked at; None for none.
        after: Tasks that must be done before, as this one starts from their weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    config: RunConfig
    asks: tuple[Ask, ...] = ()
    inspected: str | None = None
    after: tuple[str, ...] = ()


class Study(BaseModel):
    """What a user asked for, tables and figures aside.

    Attributes:
        dataset: The data set.
        profile: The paper's budget, or one that fits a small machine.
        seeds: Number of seeds, counted from 0.
        checkpoint: Which weights are measured; None for those that the run's rule selected.
        overrides: Changes to every configuration, as for `kepsvgp train`.
        file: A configuration of the user's own instead of the profile's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    dataset: str
    profile: Profile = "paper"
    seeds: int = 5
    checkpoint: Literal["last", "score", "nll"] | None = None
    overrides: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def source(self) -> str:
        """The configuration that all runs start from: a file, or the name of a shipped one."""
        return config_name(self.dataset, self.profile) if self.file is None else str(self.file)

    @property
    def budget(self) -> str:
        """What the profile is called."""
        return self.profile if self.file is None else self.file.stem

    def described(self) -> dict[str, Any]:
        """What a result should say of it; no file outside the output root is named."""
        return self.model_dump(mode="json", exclude={"file", "profile"}) | {"budget": self.budget}

    def base(self) -> RunConfig:
        """That configuration, with the overrides."""
        return load_config(self.source, self.overrides)

    def config(self, row: Row, seed: int, extra: Sequence[str] = ()) -> RunConfig:
        """The configuration of a row's run; what the row varies wins over the overrides."""
        changes = (*self.overrides, *extra, *row.settings)
        config = load_config(self.source, (*changes, f"method={row.trained}", f"seed={seed}"))
        if config.data.name != self.dataset:
            raise UserError(
                f"--dataset must be that of the configuration, {config.data.name}; "
                f"got {self.dataset}."
            )
        # the run is made in another folder than this one
        return with_absolute_paths(find_method(config.method).normalised(config))

    def checkpoint_of(self, config: RunConfig) -> str:
        """The name of the checkpoint that is measured."""
        return self.checkpoint or config.train.select


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuses changes to what a table varies by itself."""
    options = {"seed": "--seeds for their number", "method": "--rows for the methods"}
    for override in overrides:
        name = override.partition("=")[0].strip()
        if name in options:
            raise UserError(
                f"a change must be to a setting that all runs share; got {override}. "
                f"Give {options[name]}."
            )


def config_name(dataset: str, profile: Profile) -> str:
    """The shipped configuration of a data set."""
    if dataset not in DATASETS:
        raise UserError(f"--dataset must be one of {', '.join(DATASETS)}; got {dataset!r}.")
    return dataset if profile == "paper" else f"{dataset}-small"


def check_fits(exhibit: Table | Figure, dataset: str) -> None:
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
        if dataset not in having[need]:
            raise UserError(
                f"{exhibit.name} is about {words[need]}; --dataset must be one of "
                f"{', '.join(having[need])}, got {dataset}."
            )


def run_name(config: RunConfig) -> str:
    """Folder of a run: what a person wants to see first, then the hash of all the rest."""
    values = json.dumps(config.identity(), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:10]
    return f"{config.data.name}-{config.method}-s{config.seed}-{digest}"


def tasks_of(exhibit: Table | Figure, study: Study) -> list[Task]:
    """The runs of a table or figure, each once; what one starts from stands before it."""
    check_fits(exhibit, study.dataset)
    return merged(
        task
        for row in rows_of(exhibit, study.dataset)
        for seed in range(study.seeds)
        for task in row_tasks(exhibit, row, study, seed)
    )


def rows_of(exhibit: Table | Figure, dataset: str) -> tuple[Row, ...]:
    """The rows that a data set has."""
    return exhibit.rows_for(dataset) if isinstance(exhibit, Table) else exhibit.rows


def row_task(exhibit: Table | Figure, row: Row, study: Study, seed: int) -> Task:
    """The run of one row and seed, with what is asked of it."""
    return row_tasks(exhibit, row, study, seed)[-1]


def row_tasks(exhibit: Table | Figure, row: Row, study: Study, seed: int) -> list[Task]:
    """The run of one row and seed, after the run that it starts from, if there is one."""
    extra = settings_of(exhibit, study)
    config, before = study.config(row, seed, extra), []
    method = find_method(config.method)
    first = method.first_step(config)
    if first is not None:
        first = find_method(first.method).normalised(first)
        before = [Task(name=run_name(first), config=first)]
        # named below the output root, in which every task runs
        config = method.after(config, Path(before[0].name))
    asks = tuple(
        Ask(row.method, study.checkpoint_of(config), splits) for splits in splits_of(exhibit)
    )
    looks_inside = isinstance(exhibit, Figure) and exhibit.is_inspected
    task = Task(
        name=run_name(config),
        config=config,
        asks=asks,
        inspected=study.checkpoint_of(config) if looks_inside else None,
        after=tuple(t.name for t in before),
    )
    return [*before, task]


def settings_of(exhibit: Table | Figure, study: Study) -> tuple[str, ...]:
    """Overrides that belong to the table itself, in the paper's profile."""
    if study.budget != "paper" or isinstance(exhibit, Figure):
        return ()
    return exhibit.paper_settings.get(study.dataset, ())


def splits_of(exhibit: Table | Figure) -> tuple[str, ...]:
    """What a table or figure asks of its runs."""
    if isinstance(exhibit, Figure):
        return exhibit.splits
    # other data are told from the test set
    if exhibit.source == "ood":
        return ("test", "ood")
    return () if exhibit.source == "time" else (exhibit.source,)


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
                "asks": tuple(dict.fromkeys((*known.asks, *task.asks))),
                "inspected": known.inspected or task.inspected,
            }
        )
    return list(by_name.values())
