import io

import pytest
from rich.console import Console

from kepsvgp.data import progress
from kepsvgp.data.progress import Display, clock, track


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def written(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (185, "3:05 min"), (7625, "2:07 h")],
)
def test_clock_speaks_of_people_s_units(seconds, text) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_track_passes_on_what_it_is_given(terminal) -> None:
    where = console(terminal=terminal)

    assert list(track(range(5), "counting", where)) == [0, 1, 2, 3, 4]
    assert ("counting" in written(where)) == terminal


def test_display_says_how_far_it_is_where_there_is_no_terminal(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    where = console(terminal=False)

    with Display(where, "counting", total=5, done=2) as display:
        for _ in range(3):
            display.step({"total": 2.0})
        display.say("done")

    first, second, last = written(where).splitlines()
    assert first.startswith("counting 3/5  total 2  ")
    assert second.startswith("counting 4/5  total 2  ")
    assert second.endswith(" left")
    assert last == "done"


def test_display_shows_terms_and_time_left_on_a_terminal() -> None:
    where = console(terminal=True)

    with Display(where, "counting", total=4) as display:
        for _ in range(4):
            display.step({"total": 2.5, "nll": 2.25})
        display.say("epoch 1/1")

    shown = written(where)
    assert all(text in shown for text in ("4/4", "total 2.5  nll 2.25", "left", "epoch 1/1"))


def test_display_without_a_console_says_nothing(capsys) -> None:
    with Display(None, "counting", total=1) as display:
        display.step({"total": 1.0})
        display.say("done")

    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
