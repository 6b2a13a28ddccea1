"""What is shown of a command at work, on a terminal alone."""

from __future__ import annotations

import sys

import pytest

from headstart.cli import progress
from headstart.cli.progress import Activity, spoken


@pytest.mark.parametrize(
    ("terminal", "shown", "seen"), [(True, True, "A line.\n"), (True, False, ""), (False, True, "")]
)
def test_a_line_stays_where_anything_is_shown(
    terminal: bool, shown: bool, seen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    Activity(shown).say("A line.")
    assert capsys.readouterr().err == seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands where it is put."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_in_a_file_a_line_every_ten_seconds_says_how_it_stands(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    activity = Activity(aloud=True)
    activity.show("Measuring", 10)
    for second in range(1, 26):
        clock[0] = float(second)
        activity.advance(int(second % 5 == 0), 4)
    assert capsys.readouterr().err.splitlines() == [
        "Measuring 2 of 10, 40 tokens, 4 tokens/s, about 40 s left",
        "Measuring 4 of 10, 80 tokens, 4 tokens/s, about 30 s left",
    ]


def test_a_limit_says_how_much_is_left_whatever_is_done(clock: list[float]) -> None:
    activity = Activity()
    assert activity.left == ""
    activity.end_within(120)
    activity.show("Writing")
    clock[0] = 75.0
    assert activity.left == "about 45 s left"
    clock[0] = 500.0
    assert activity.left == "about 0 s left"


@pytest.mark.parametrize("arguments", [{"shown": False, "aloud": True}, {}])
def test_who_was_not_asked_says_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str], arguments: dict[str, bool]
) -> None:
    activity = Activity(**arguments)
    activity.show("Measuring", 10)
    clock[0] = 100.0
    activity.advance(1, 1)
    activity.announce("A line.")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.4, "3 s"), (41, "40 s"), (100, "2 min"), (3600, "60 min"), (7900, "2 h 12 min")]
)
def test_spans_of_time_are_as_precise_as_estimates_are(seconds: float, said: str) -> None:
    assert spoken(seconds) == said
