"""What a user asks `kepsvgp reproduce` for, and the plan that it means."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kepsvgp.config.file import find_config, load_config
from kepsvgp.paper.plan import Plan, make_plan
from kepsvgp.paper.study import Profile, Study, check_overrides
from kepsvgp.paper.tables import choose


@dataclass(frozen=True)
class Request:
    """A request in the words of the command line.

    Attributes:
        what: Names of tables and figures, and `key=value` changes to every configuration.
        dataset: None for those that the paper has.
        seeds: Number of seeds, counted from 0.
        profile: The paper's budget, or one for a small machine.
        variant: The paper's text, its authors' program, or ours.
        config: Another configuration than the profile's: a file, or a shipped name.
        rows: The methods alone that are wanted; none for all.
        checkpoint: Which weights are measured; None for what each run selected.
    """

    what: tuple[str, ...]
    dataset: str | None = None
    seeds: int = 5
    profile: Profile = "paper"
    variant: str = "ours"
    config: Path | None = None
    rows: tuple[str, ...] = ()
    checkpoint: Literal["last", "score", "nll"] | None = None

    def plan(self) -> Plan:
        """The plan, derived once."""
        # first, as the configuration may have sections for methods of one's own
        chosen = choose([word for word in self.what if "=" not in word], self.rows)
        overrides = tuple(word for word in self.what if "=" in word)
        check_overrides(overrides)
        file = None if self.config is None else find_config(self.config).resolve()
        dataset = self.dataset or (None if file is None else load_config(file).data.name)

        def study_of(name: str) -> Study:
            return Study(
                dataset=name,
                profile=self.profile,
                variant=self.variant,
                seeds=self.seeds,
                checkpoint=self.checkpoint,
                overrides=overrides,
                file=file,
            )

        return make_plan(chosen, dataset, study_of)
