"""What a user asks for, tables and figures aside: the data set, budget and seeds of all runs.

A run's folder is named after a hash of its complete configuration, so tables that need the
same run find the same folder, and a setting that cannot matter to a method (the rank of KEP
layers to a softmax model) does not make another run of it.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kepsvgp.config.comparison import with_absolute_paths
from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method, short_name
from kepsvgp.config.sections import RunConfig
from kepsvgp.errors import UserError
from kepsvgp.paper.declarations import DATASETS, MethodRow

Profile = Literal["paper", "small"]


class Study(BaseModel):
    """What a user asked for, tables and figures aside.

    Attributes:
        dataset: The data set.
        profile: The paper's budget, or one that fits a small machine.
        variant: The paper's text, its authors' program, or ours.
        seeds: Number of seeds, counted from 0.
        checkpoint: Which weights are measured; None for those that the run's rule selected.
        overrides: Changes to every configuration, as for `kepsvgp train`.
        file: A configuration of the user's own instead of the profile's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    dataset: str
    profile: Profile = "paper"
    variant: str = "ours"
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
        return load_config(self.source, self.overrides, variant=self.variant)

    def config(self, row: MethodRow, extra: Sequence[str] = ()) -> RunConfig:
        """The configuration of a row's runs; what the row varies wins over the overrides."""
        changes = (*self.overrides, *extra, *row.settings)
        changes = (*changes, f"method={row.trained}")
        config = load_config(self.source, changes, variant=row.variant or self.variant)
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


def run_name(config: RunConfig) -> str:
    """Folder of a run: what a person wants to see first, then the hash of all the rest."""
    values = json.dumps(config.identity(), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:10]
    data, method = short_name(config.data.name), find_method(config.method).name
    return f"{data}-{method}-s{config.seed}-{digest}"
