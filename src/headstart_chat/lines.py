"""Where an interactive command's lines come from: a terminal with line editing and history, or a script on stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PROMPT, CONTINUED = ">>> ", "... "
BLOCK = '"""'
"""Begins and ends a message of several lines."""
_HISTORY_LINES = 1000


class Lines(Protocol):
    """A source of lines."""

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None: there are no more.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """

    def close(self) -> None: ...


class ScriptLines:
    """Lines of stdin, where that is no terminal. Nothing is asked for."""

    def read(self, prompt: str) -> str | None:
        """As ``Lines``; what is not UTF-8 is replaced."""
        line = sys.stdin.buffer.readline()
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    def close(self) -> None:
        pass


class TerminalLines:
    """Lines typed at a terminal, edited by readline; what was typed before is kept in a file of this user's.

    Args:
        words: what the tabulator key completes at the start of a line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._history = history_file()
        self._prompted = sys.stdout.isatty()
        with suppress(ImportError, OSError):
            import readline

            readline.set_completer(_completer(words))
            readline.set_completer_delims(" ")
            readline.parse_and_bind("tab: complete")
            readline.set_history_length(_HISTORY_LINES)
            readline.read_history_file(self._history)

    def read(self, prompt: str) -> str | None:
        """As ``Lines``; Ctrl-D on an empty line ends them."""
        if not self._prompted:
            # Answers go to a file or a pipe, and to nothing else.
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            print(file=sys.stdout if self._prompted else sys.stderr)
            return None
        except UnicodeDecodeError:
            return ""

    def close(self) -> None:
        """Keep the history."""
        with suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            readline.write_history_file(self._history)


def history_file() -> Path:
    """Where a terminal's lines are kept."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "headstart" / "chat_history"


def read_message(lines: Lines) -> str | None:
    """A message: one line; more, where a line ends with a backslash or begins a block; None: there are no more.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    line = lines.read(PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith(BLOCK):
        return _block(lines, line.lstrip().removeprefix(BLOCK))
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        following = lines.read(CONTINUED)
        if following is None:
            break
        parts.append(following)
    return "\n".join(parts)


def _block(lines: Lines, first: str) -> str:
    parts = [first]
    while not parts[-1].rstrip().endswith(BLOCK):
        following = lines.read(CONTINUED)
        if following is None:
            return "\n".join(parts).strip("\n")
        parts.append(following)
    parts[-1] = parts[-1].rstrip().removesuffix(BLOCK)
    return "\n".join(parts).strip("\n")


def _completer(words: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        found = [word for word in words if text and word.startswith(text)]
        return found[state] if state < len(found) else None

    return complete
