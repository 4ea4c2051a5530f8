"""The table of tested models in the guide."""

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/guides/models.md"


def table_of_models(*, only: str = "", beside: str | None = None) -> dict[str, list[str]]:
    """What each column says, by family: of those whose names begin so, or do not."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    marks = {row[0].replace("`", ""): row[1:] for row in rows if len(row) == 8 and "✓" in row}
    return {
        name: row
        for name, row in marks.items()
        if name.startswith(only) and (beside is None or not name.startswith(beside))
    }
