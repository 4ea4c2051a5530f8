"""What a user asks `kepsvgp reproduce` for, and the plan that it means."""

from pathlib import Path
from typing import Any

from kepsvgp.config.file import find_config, load_config
from kepsvgp.paper.chosen import choose
from kepsvgp.paper.declarations import Exhibit
from kepsvgp.paper.plan import Plan, make_plan
from kepsvgp.paper.study import Study, check_overrides


def plan_request(
    what: tuple[str, ...],
    *,
    dataset: str | None = None,
    config: Path | None = None,
    rows: tuple[str, ...] = (),
    **asked: Any,
) -> Plan:
    """The plan of a request in the words of the command line.

    Args:
        what: Names of tables and figures, and `key=value` changes to every configuration.
        dataset: None for those that the paper has.
        config: Another configuration than the profile's: a file, or a shipped name.
        rows: The methods alone that are wanted; none for all.
        asked: What else a `Study` has: profile, variant, seeds, checkpoint.
    """
    # first, as the configuration may have sections for methods of one's own
    chosen = choose([word for word in what if "=" not in word], rows)
    overrides = tuple(word for word in what if "=" in word)
    check_overrides(overrides)
    file = None if config is None else find_config(config).resolve()
    dataset = dataset or (None if file is None else load_config(file).data.name)
    given = {key: value for key, value in asked.items() if value is not None}

    def study(exhibit: Exhibit, name: str) -> Study:
        own = file or (find_config(exhibit.config) if exhibit.config else None)
        of_exhibit = {"checkpoint": exhibit.checkpoint, "file": own}
        return Study(dataset=name, overrides=overrides, **(of_exhibit | given))

    return make_plan(chosen, dataset, study)
