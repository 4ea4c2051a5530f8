"""What a person sees while something long is running.

Bars on a terminal, plain lines elsewhere, both on standard error: standard output is for
results. In a run of many processes only the first one speaks.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

# between two plain lines about the same work, so that a log stays readable
_SECONDS_BETWEEN_LINES = 30.0


def track(items: Iterable[Item], description: str, console: Console | None) -> Iterator[Item]:
    """The same items, and a display that says how far they are; no console for none."""
    with Display(console, description, total=length_hint(items)) as display:
        for item in items:
            yield item
            display.step()


class Display:
    """Shows how far some work is: a bar on a terminal, a line now and then elsewhere.

    Args:
        console: Where to write; None for nowhere.
        description: What the work is called.
        total: Its number of steps.
        done: Those that were done before, when it is resumed.
    """

    def __init__(
        self, console: Console | None, description: str, *, total: int, done: int = 0
    ) -> None:
        self._console, self._description = console, description
        self._total, self._done, self._first = total, done, done
        self._start = self._last = time.monotonic()
        self._bars = _bars(console) if console is not None and console.is_terminal else None
        if self._bars is not None:
            self._bars.add_task(description, total=total, completed=done, terms="")

    def __enter__(self) -> "Display":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, terms: Mapping[str, float] | None = None) -> None:
        """One step is done, with these loss terms."""
        self._done += 1
        text = named(terms or {})
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], advance=1, terms=text)
            return
        now = time.monotonic()
        if self._done < self._total and now - self._last >= _SECONDS_BETWEEN_LINES:
            left = (now - self._start) / (self._done - self._first) * (self._total - self._done)
            parts = (f"{self._description} {self._done}/{self._total}", text, f"{clock(left)} left")
            self.say("  ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Writes a line of its own."""
        self._last = time.monotonic()
        if self._console is not None:
            self._console.print(line, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """A duration for people: `7 s`, `3:05 min`, `2:07 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def named(values: Mapping[str, float]) -> str:
    """Numbers with their names, on a line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[terms]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
