"""What a user asks `kepsvgp reproduce` for, and the plan that it means."""

from pathlib import Path
from typing import Any

from kepsvgp.config.file import find_config, load_config
from kepsvgp.paper.chosen import choose
from kepsvgp.paper.declarations import Exhibit
from kepsvgp.paper.plan import Plan, make_plan
from kepsvgp.paper.study import Study, check_overrides


class Request:
    """A request in the words of the command line.

    Args:
        what: Names of tables and figures, and `key=value` changes to every configuration.
        dataset: None for those that the paper has.
        config: Another configuration than the profile's: a file, or a shipped name.
        rows: The methods alone that are wanted; none for all.
        study: What else a `Study` has: profile, variant, seeds, checkpoint.
    """

    def __init__(
        self,
        what: tuple[str, ...],
        *,
        dataset: str | None = None,
        config: Path | None = None,
        rows: tuple[str, ...] = (),
        **study: Any,
    ) -> None:
        self.what, self.dataset, self.config, self.rows = what, dataset, config, rows
        self.study = study

    def plan(self) -> Plan:
        """The plan, derived once."""
        # first, as the configuration may have sections for methods of one's own
        chosen = choose([word for word in self.what if "=" not in word], self.rows)
        overrides = tuple(word for word in self.what if "=" in word)
        check_overrides(overrides)
        file = None if self.config is None else find_config(self.config).resolve()
        dataset = self.dataset or (None if file is None else load_config(file).data.name)

        def study(exhibit: Exhibit, name: str) -> Study:
            own = file or (find_config(exhibit.config) if exhibit.config else None)
            asked = {key: value for key, value in self.study.items() if value is not None}
            of_exhibit = {"checkpoint": exhibit.checkpoint, "file": own}
            return Study(dataset=name, overrides=overrides, **(of_exhibit | asked))

        return make_plan(chosen, dataset, study)
