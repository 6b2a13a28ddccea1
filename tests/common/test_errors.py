"""Messages as terminals may have them."""

from __future__ import annotations

from headstart.errors import CheckpointError, printable


def test_names_of_files_steer_no_terminal() -> None:
    assert printable("a\x1b[31m\x07\x9b\udcff b\n\té\u200d") == "a\\x1b[31m\\x07\\x9b\\udcff b\n\té\u200d"
    assert str(CheckpointError("eagle\x1b]0;x is damaged.")) == "eagle\\x1b]0;x is damaged."
