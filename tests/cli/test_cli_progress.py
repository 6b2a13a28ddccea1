"""What is shown of a command at work, on a terminal alone."""

from __future__ import annotations

import sys

import pytest

from headstart.cli.progress import Activity


@pytest.mark.parametrize(
    ("terminal", "shown", "seen"), [(True, True, "A line.\n"), (True, False, ""), (False, True, "")]
)
def test_a_line_stays_where_anything_is_shown(
    terminal: bool, shown: bool, seen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    Activity(shown).say("A line.")
    assert capsys.readouterr().err == seen
