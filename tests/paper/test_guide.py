"""The hours in the guide are those that the command prints."""

import re
from pathlib import Path

import pytest

from kepsvgp.paper.plan import Study, Task, merged, tasks_of
from kepsvgp.paper.records import paper_hours
from kepsvgp.paper.tables import FIGURES, TABLES, find

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "reproduce.md").read_text()
COLUMNS = ("cifar10", "cifar100", "imdb", "cola")


def hours() -> list[tuple[str, str, float]]:
    section = GUIDE.split("## How long it takes")[1].split("## ")[0]
    found = []
    for line in section.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+\d)`", cells[0]):
            for dataset, text in zip(COLUMNS, cells[1:], strict=True):
                if text.endswith(" h"):
                    found.append((name, dataset, float(text.removesuffix(" h"))))
    return found


@pytest.mark.parametrize(("name", "dataset", "expected"), hours())
def test_guide_has_the_hours_of_the_command(name, dataset, expected) -> None:
    found = paper_hours(tasks_of(find(name), Study(dataset=dataset)))
    assert found == pytest.approx(expected, abs=0.051)


def test_guide_has_the_hours_of_everything() -> None:
    every: list[Task] = merged(
        task
        for exhibit in (*TABLES, *FIGURES)
        for dataset in exhibit.datasets
        for task in tasks_of(exhibit, Study(dataset=dataset))
    )
    sgpa = [task for task in every if task.config.method == "sgpa"]
    whole, part = paper_hours(every), paper_hours(sgpa)
    assert whole is not None
    assert part is not None
    told = f"{len(every)} runs, {whole:.0f} h, of which SGPA alone takes {part:.0f} h"
    assert told in " ".join(GUIDE.split())
    assert len(hours()) > 10


def test_hours_of_what_the_paper_did_not_time_are_unknown() -> None:
    assert paper_hours(tasks_of(find("table7"), Study(dataset="digits"))) is None
