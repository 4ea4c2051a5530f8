"""Tables, figures and studies by their names, with all of their rows or with some."""

from collections.abc import Sequence
from dataclasses import replace

from kepsvgp.config.plugins import find_method, places
from kepsvgp.errors import UserError
from kepsvgp.paper.declarations import Exhibit, MethodRow, PaperTable
from kepsvgp.paper.studies import STUDIES
from kepsvgp.paper.tables import DEFAULTS, FIGURES, NAMES, TABLES

EVERY = (*TABLES, *FIGURES, DEFAULTS, *STUDIES)


def find(name: str) -> Exhibit:
    """The table or figure of this name."""
    for exhibit in EVERY:
        if exhibit.name == name:
            return exhibit
    raise UserError(
        "WHAT must be table1 … table9, figure2 … figure5, all of these, defaults, studies, or "
        f"one of {', '.join(study.name for study in STUDIES)}; got {name!r}."
    )


def choose(names: Sequence[str], rows: Sequence[str] = ()) -> list[Exhibit]:
    """Exhibits by name, with these rows alone if any are named.

    `all` is every table and figure of the paper, `studies` every study of ours.
    """
    several = {"all": NAMES, "studies": tuple(study.name for study in STUDIES)}
    wanted = dict.fromkeys(each for name in names for each in several.get(name, (name,)))
    found = [find(name) for name in wanted]
    return [_with_rows(exhibit, rows) for exhibit in found] if rows else found


def _with_rows(exhibit: Exhibit, keys: Sequence[str]) -> Exhibit:
    known = {row.key: row for row in exhibit.rows}
    # a row of another table is no mistake when several are asked for
    elsewhere = {row.key for other in EVERY for row in other.rows}
    for key in keys:
        if key in known or key in elsewhere:
            continue
        if not isinstance(exhibit, PaperTable) or not (
            ":" in key or key in places("kepsvgp.methods")
        ):
            raise UserError(
                f"--rows must be among {', '.join(known)} for {exhibit.name}, or a method; "
                f"got {key!r}."
            )
        # a method that the paper's table does not have
        method = find_method(key)
        posthoc = key.rpartition("+")[2] if method.is_post_hoc else ""
        known[key] = MethodRow(method.name, method.title, method.place, posthoc)
    kept = tuple(known[key] for key in keys if key in known)
    if not kept:
        raise UserError(f"--rows must leave {exhibit.name} a row; it has {', '.join(known)}.")
    return replace(exhibit, rows=kept)
