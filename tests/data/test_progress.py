import io

import pytest
from rich.console import Console

from kepsvgp.data import progress
from kepsvgp.data.progress import TrainingDisplay, clock, track

ENTRY = {
    "epoch": 1,
    "train": {"total": 1.5, "nll": 1.25},
    "val": {"accuracy": 0.75},
    "seconds": 3.2,
}


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

    assert list(track(range(5), "counting", total=5, console=where)) == [0, 1, 2, 3, 4]
    assert ("counting" in written(where)) == terminal


def test_track_says_how_far_it_is_where_there_is_no_terminal(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    where = console(terminal=False)

    list(track(range(3), "counting", total=3, console=where))

    lines = written(where).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("counting: 1/3, ")
    assert lines[0].endswith(" left")


def test_training_display_has_a_line_for_each_epoch_without_a_terminal() -> None:
    where = console(terminal=False)

    with TrainingDisplay(where, total_steps=4) as display:
        display.step({"total": 2.0})
        display.epoch(ENTRY, epochs=2)

    assert written(where) == "epoch 1/2  total 1.5  nll 1.25  val accuracy 0.75  3 s\n"


def test_training_display_tells_the_time_left_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    where = console(terminal=False)

    with TrainingDisplay(where, total_steps=4, done_steps=2) as display:
        display.step({"total": 2.0})

    assert written(where).startswith("step 3/4  total 2  ")
    assert written(where).rstrip().endswith("left")


def test_training_display_shows_terms_and_time_left_on_a_terminal() -> None:
    where = console(terminal=True)

    with TrainingDisplay(where, total_steps=4) as display:
        for _ in range(4):
            display.step({"total": 2.5, "nll": 2.25})
        display.epoch(ENTRY, epochs=1)

    shown = written(where)
    assert "4/4" in shown
    assert "total 2.5  nll 2.25" in shown
    assert "left" in shown
    assert "epoch 1/1" in shown


def test_training_display_without_a_console_says_nothing(capsys) -> None:
    with TrainingDisplay(None, total_steps=1) as display:
        display.step({"total": 1.0})
        display.epoch(ENTRY, epochs=1)

    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
