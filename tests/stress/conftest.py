"""How much is tried: a little in every test run, all of it with KEPSVGP_STRESS=long.

Tests say how many cases they tried; the counts are printed at the end.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def tried(record_property) -> Callable[[str, int], None]:
    """Says how many cases of a promise a test has tried."""

    def say(promise: str, count: int) -> None:
        record_property("tried", (promise, count))

    return say


@pytest.fixture(scope="session")
def processes():
    """Processes that fork from a server which has imported everything, so that they start fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "breaking",
            "kepsvgp.training.loop",
            "kepsvgp.runs.evaluation",
            "kepsvgp.data.sets.digits",
            "kepsvgp.cli",
        ]
    )
    return context


@pytest.fixture(autouse=True)
def _nobody_left() -> Iterator[None]:
    """Ends processes that a failed test left running, or halted."""
    yield
    for process in multiprocessing.active_children():
        process.kill()


def pytest_terminal_summary(terminalreporter) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "tried":
                promise, count = value
                counts[promise] += count
    if counts:
        terminalreporter.section("cases tried")
        for promise, count in counts.items():
            terminalreporter.write_line(f"{count:>8,}  {promise}")
