"""Running ``headstart`` in this process, as a user would call it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from typer.testing import CliRunner, Result

from headstart.cli.main import app

PLAIN_SURROUNDINGS: Mapping[str, str | None] = {
    "COLUMNS": "120",
    "TERM": "xterm",
    "FORCE_COLOR": None,
    "NO_COLOR": None,
    "HEADSTART_TRACEBACK": None,
}


def headstart(*arguments: object, stdin: str | bytes | None = None, **env: str) -> Result:
    """One call with its exit status; keyword arguments are environment variables."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, input=stdin, env={**PLAIN_SURROUNDINGS, **env}, prog_name="headstart")


def rows(result: Result) -> list[dict[str, Any]]:
    """The JSON objects on stdout, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def refusal(result: Result, status: int = 2) -> str:
    """The one sentence of a call that failed and said nothing else."""
    assert result.exit_code == status
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert line.endswith(".")
    return line
