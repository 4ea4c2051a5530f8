import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kepsvgp.cli import results
from kepsvgp.cli.results import show_comparison, show_metrics
from kepsvgp.data.shifts.corruptions import STRENGTHS
from kepsvgp.methods.compare import Comparison
from kepsvgp.runs.folder import RunFolder

METRICS = {
    "accuracy": 0.7512, "mcc": -0.1234, "aurc": 0.0654, "auroc": 0.8765,
    "fpr95": 0.4321, "ece": 0.0987, "nll": 12.3456, "brier": 0.3456,
}  # fmt: skip
NAMES = [f"{name}/{severity}" for name in STRENGTHS for severity in (1, 5)]


class Measured(RunFolder):
    """Stands for a run that was evaluated on shifted sets."""

    def metrics(self) -> dict:
        return {"score": {"kep": {f"shift/{name}": METRICS for name in NAMES}}}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Makes the tables go to a terminal of so many columns."""

    def of(width: int) -> io.StringIO:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=width, color_system=None)
        monkeypatch.setattr(results, "Console", lambda **_: console)
        return file

    return of


@pytest.mark.parametrize("width", [80, 40, None])
def test_shifted_sets_are_shown_whole_in_parts_where_it_is_narrow(terminal, capsys, width) -> None:
    file = terminal(width) if width else None

    show_metrics(Measured(Path("runs/one")), "score", "kep", [f"shift/{name}" for name in NAMES])

    text = file.getvalue() if file else capsys.readouterr().out
    values = [f"{value:.4f}" for value in METRICS.values()]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= (width or 200)
    assert all(text.count(value) == len(NAMES) for value in values)
    whole = [line.split() for line in text.splitlines()]
    assert all(([name, *values] in whole) == (width != 40) for name in NAMES)


def test_a_comparison_of_several_seeds_is_whole_at_80_columns(terminal) -> None:
    file = terminal(80)
    values = {metric: [value, value + 0.01] for metric, value in METRICS.items()}

    show_comparison(Comparison((0, 1), {"kep+temperature": {"test": values}}), Path("runs"))

    text = file.getvalue()
    assert text.count("±") == len(METRICS)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
