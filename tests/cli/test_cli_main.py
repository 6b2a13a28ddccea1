"""What all sub-commands share: quick help, one sentence for each error, quiet ends."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

from headstart.cli import prompts
from headstart.cli.main import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]
COMMANDS.append("bench")
CALLS = [(), *((name,) for name in COMMANDS), ("bench", "serve")]
QUICK = [["--version"], ["drafters"], *([*call, "--help"] for call in CALLS)]


def test_help_imports_nothing_heavy() -> None:
    script = f"""
import sys
from pathlib import Path
from headstart.cli.main import app
for path in {QUICK!r}:
    try:
        app(path, prog_name="headstart")
    except SystemExit as end:
        assert end.code == 0, path
heavy = {{"torch", "numpy", "tokenizers", "transformers", "gguf", "jinja2"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


def test_help_names_every_command_and_is_shown_without_arguments() -> None:
    result = headstart()
    assert result.exit_code == 0
    assert result.stdout == headstart("--help").stdout
    assert all(command in result.stdout for command in COMMANDS)
    assert {"generate", "drafters", "derive", "theory"} <= set(COMMANDS)


def test_the_package_runs_as_a_module() -> None:
    run = [sys.executable, "-m", "headstart", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == headstart("--version").stdout


def test_version() -> None:
    result = headstart("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("headstart 0.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["generate", "x", "--top-k", "many"], "--top-k"),
        (["generate", "x", "--verify", "never"], "--verify"),
        (["generate"], "PROMPT"),
        (["derive", "--layers", "2"], "--out"),
    ],
)
def test_misuse_is_one_sentence_with_status_2(arguments: list[str], named: str) -> None:
    sentence = refusal(headstart(*arguments), status=2)
    assert named in sentence
    assert "--help" in sentence
    assert "Value error" not in sentence


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(prompts, "one_prompt", broken)


def test_a_fault_of_ours_is_one_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("some\nthing"), monkeypatch)
    sentence = refusal(headstart("generate", "x"), status=1)
    assert "RuntimeError: some thing" in sentence
    assert "HEADSTART_TRACEBACK" in sentence


def test_a_fault_of_ours_shows_its_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("something"), monkeypatch)
    assert isinstance(headstart("generate", "x", HEADSTART_TRACEBACK="1").exception, RuntimeError)


def test_what_the_system_refuses_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file"), monkeypatch)
    assert refusal(headstart("generate", "x"), status=1) == "Error: /some/file: No space left on device."
    fail_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), monkeypatch)
    assert refusal(headstart("generate", "x"), status=1) == "Error: No space left on device."


def test_ctrl_c_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    result = headstart("generate", "x")
    assert result.exit_code == 130
    assert result.output == ""


@pytest.mark.parametrize("words", [["drafters", "--json"], ["drafters"], ["theory", "table1"], ["--help"], []])
def test_a_closed_pipe_is_silent(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from headstart.cli.main import main; main()", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


def test_closed_streams_are_no_fault() -> None:
    command = f"{sys.executable} -c 'from headstart.cli.main import main; main()' drafters >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def test_the_manual_names_only_options_that_exist() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", manual))
    known = {
        option
        for command in CALLS
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", headstart(*command, "--help").stdout)
    }
    assert named <= known


def test_the_manual_names_every_option_of_generate() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    panels = headstart("generate", "--help").stdout.partition("─ Arguments ")[2]
    for option in re.findall(r"^│ (--[a-z][\w-]*)", panels, flags=re.MULTILINE):
        assert option in manual, option
