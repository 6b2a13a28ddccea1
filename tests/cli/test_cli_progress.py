"""What is shown of a command at work, on a terminal alone."""

from __future__ import annotations

import sys
from threading import Event

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


def test_a_line_says_how_it_stands(clock: list[float]) -> None:
    activity = Activity(aloud=True)
    activity.show("Measuring", 10)
    for second in range(1, 21):
        clock[0] = float(second)
        activity.advance(int(second % 5 == 0), 4)
    assert activity.line == "Measuring 4 of 10, 80 tokens, 4 tokens/s, about 30 s left"


def test_in_a_file_there_are_lines_even_while_nothing_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.001)
    nothing, said = Event(), Event()
    line = Activity.line.fget

    def telling(self: Activity) -> str:
        told = line(self)
        (said if told else nothing).set()
        return told

    monkeypatch.setattr(Activity, "line", property(telling))
    with Activity(aloud=True) as activity:
        assert nothing.wait(60)
        activity.show("Loading")
        assert said.wait(60)
    assert set(capsys.readouterr().err.splitlines()) == {"Loading, 0 s so far"}


def test_a_limit_says_how_much_is_left_whatever_is_done(clock: list[float]) -> None:
    activity = Activity()
    assert activity.left == ""
    activity.end_within(120)
    activity.show("Writing")
    clock[0] = 75.0
    assert activity.left == "about 45 s left"
    clock[0] = 500.0
    assert activity.left == "about 0 s left"


def test_what_counts_nothing_says_how_long_it_has_gone_on(clock: list[float]) -> None:
    activity = Activity()
    assert activity.line == ""
    activity.show("Loading a model")
    clock[0] = 40.0
    assert activity.line == "Loading a model, 40 s so far"
    activity.show("Writing text", 600)
    activity.advance(48, 48)
    assert activity.line.startswith("Writing text 48 of 600, 48 tokens")


@pytest.mark.parametrize("arguments", [{"shown": False, "aloud": True}, {}])
def test_who_was_not_asked_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: dict[str, bool]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Activity(**arguments) as activity:
        activity.show("Measuring", 10)
        activity.advance(1, 1)
        activity.announce("A line.")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.4, "3 s"), (41, "40 s"), (100, "2 min"), (3600, "60 min"), (7900, "2 h 12 min")]
)
def test_spans_of_time_are_as_precise_as_estimates_are(seconds: float, said: str) -> None:
    assert spoken(seconds) == said
