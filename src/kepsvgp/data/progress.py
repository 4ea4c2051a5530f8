"""What a person sees while something long is running.

Bars on a terminal, plain lines elsewhere, both on standard error: standard output is for
results. In a run of many processes only the first one speaks.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

# between two plain lines about the same work, so that a log stays readable
_SECONDS_BETWEEN_LINES = 30.0


def track(
    items: Iterable[Item], description: str, *, total: int, console: Console | None = None
) -> Iterator[Item]:
    """The same items, with a bar, or a line now and then, that says how far they are."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield from _with_lines(items, description, total, console)
        return
    with _bars(console) as bars:
        task = bars.add_task(description, total=total, terms="")
        for item in items:
            yield item
            bars.advance(task)


def _with_lines(
    items: Iterable[Item], description: str, total: int, console: Console
) -> Iterator[Item]:
    start = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES and done < total:
            last = now
            left = (now - start) / done * (total - done)
            console.print(f"{description}: {done}/{total}, {clock(left)} left", highlight=False)


class TrainingDisplay:
    """Shows a training run: loss terms, time left, and one line for each epoch.

    Args:
        console: Where to write; None for nowhere.
        total_steps: Optimizer steps of the whole run.
        done_steps: Those that were done before, when the run is resumed.
    """

    def __init__(self, console: Console | None, *, total_steps: int, done_steps: int = 0) -> None:
        self._console = console
        self._total, self._done, self._first = total_steps, done_steps, done_steps
        self._start = self._last = time.monotonic()
        self._bars: Progress | None = None
        self._task = TaskID(0)
        if console is not None and console.is_terminal:
            self._bars = _bars(console)
            self._task = self._bars.add_task(
                "training", total=total_steps, completed=done_steps, terms=""
            )

    def __enter__(self) -> "TrainingDisplay":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, terms: Mapping[str, float]) -> None:
        """One optimizer step is done, with these loss terms."""
        self._done += 1
        if self._bars is not None:
            self._bars.update(self._task, advance=1, terms=_terms(terms))
            return
        now = time.monotonic()
        if self._console is not None and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            left = (now - self._start) / (self._done - self._first) * (self._total - self._done)
            self._say(f"step {self._done}/{self._total}  {_terms(terms)}  {clock(left)} left")

    def epoch(self, entry: Mapping[str, Any], epochs: int) -> None:
        """One epoch is done, with this line of the history."""
        self._last = time.monotonic()
        self._say(
            f"epoch {entry['epoch']}/{epochs}  {_terms(entry['train'])}  "
            f"val {_terms(entry['val'])}  {clock(entry['seconds'])}"
        )

    def _say(self, line: str) -> None:
        console = self._bars.console if self._bars is not None else self._console
        if console is not None:
            console.print(line, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """A duration for people: `7 s`, `3:05 min`, `2:07 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def _terms(terms: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in terms.items())


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
