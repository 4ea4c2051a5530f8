"""The numbers that the paper printed, kept as data in `paper/`.

One JSON file for each table: `{data set: {row: {column: "mean±sd"}}}`, the text of the paper
and therefore in its units. One sign is ours: the paper prints the Brier score of KFLLLA on
CIFAR-10 as "23.75 0.57", without the ±.
"""

import json
from importlib.resources import files
from typing import NamedTuple


class Number(NamedTuple):
    """A printed number: its mean, its standard deviation if there is one, and its decimals."""

    mean: float
    sd: float | None
    decimals: int

    @classmethod
    def parse(cls, text: str) -> "Number":
        """From `83.50±0.43`, or `86.43`."""
        mean, _, sd = text.partition("±")
        return cls(float(mean), float(sd) if sd else None, len(mean.partition(".")[2]))


# {data set: {row: {column: number}}}
Published = dict[str, dict[str, dict[str, Number]]]


def published(table: str) -> Published:
    """The numbers of `table1` … `table9`; empty for a figure, which prints none."""
    file = files("kepsvgp.paper") / "paper" / f"{table}.json"
    if not file.is_file():
        return {}
    content: dict[str, dict[str, dict[str, str]]] = json.loads(file.read_text(encoding="utf-8"))
    return {
        dataset: {
            row: {column: Number.parse(text) for column, text in cells.items()}
            for row, cells in rows.items()
        }
        for dataset, rows in content.items()
    }
