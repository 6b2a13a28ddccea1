"""Help: names that can be searched for, a page that fits the terminal, and everything behind it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress

import pytest
from cli_runs import headstart

from headstart.cli.commands import OWN

CALLS = [(name,) for name in OWN] + [("bench", "serve")]
NAME = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def names(text: str) -> set[str]:
    return set(NAME.findall(text))


@pytest.mark.parametrize("columns", ["20", "80", "300"])
@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_name_is_whole_whatever_the_width(call: Sequence[str], columns: str) -> None:
    short, whole = (headstart(*call, page, COLUMNS=columns).stdout for page in ("--help", "--help-all"))
    explained = [re.split(r"\s{2,}", line.strip())[0] for line in whole.splitlines() if line.startswith("  -")]
    assert len(explained) >= 3
    assert "…" not in short + whole
    assert names(" ".join(explained)) <= names(short)


def test_a_name_can_be_searched_for_in_a_pipe() -> None:
    shown = headstart("serve", "--help", COLUMNS="80").stdout
    for name in (
        "--max-model-len",
        "--per-request-spec-decode-metrics",
        "--max-num-batched-tokens",
        "--no-prefix-caching",
    ):
        assert name in names(shown)


def test_the_apis_of_a_server_are_named() -> None:
    for page in (headstart("--help"), headstart("serve", "--help")):
        said = " ".join(page.stdout.split())
        assert all(name in said for name in ("OpenAI", "Anthropic", "Ollama", "llama.cpp", "Mistral"))


@pytest.mark.parametrize("call", [(), *CALLS], ids=" ".join)
def test_the_first_page_is_short(call: Sequence[str]) -> None:
    assert len(headstart(*call, "--help", COLUMNS="80").stdout.splitlines()) <= 40


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_the_first_page_fits_a_small_terminal(call: Sequence[str]) -> None:
    shown = on_a_terminal(24, call)
    assert shown.count("\n") < 24
    assert "--help-all" in shown


def on_a_terminal(rows: int, call: Sequence[str]) -> str:
    """What ``--help`` shows there."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("LINES", None)
        os.environ.pop("COLUMNS", None)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "headstart", *call, "--help"])
    shown = b""
    with suppress(OSError):  # which is how a terminal says that its program has ended
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return shown.decode()
