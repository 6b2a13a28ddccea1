"""Commands are found by name, without importing others: Headstart's own, and those that packages add."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

from headstart.cli import commands
from headstart.cli.commands import GROUP, OWN, Listed, every

ROOT = Path(__file__).parents[2]
GREETER = """
import typer
from headstart.cli.commands import Listed

GREET = Listed("greeter_command:greet", "Say hello.", "Other")
WAVE = Listed("greeter_command:greet", "Say nothing.", "Use a model", after="generate")
LOST = Listed("greeter_without_this:greet", "Say nothing.", "Other")
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points of other packages, to be filled."""
    points: list[EntryPoint] = []
    (tmp_path / "greeter_listing.py").write_text(GREETER)
    (tmp_path / "greeter_command.py").write_text(
        'import typer\ndef greet(name: str = "you") -> None:\n    """Say hello."""\n    typer.echo(f"Hello {name}")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: points)
    commands.added.cache_clear()
    yield points
    commands.added.cache_clear()
    for name in ("greeter_listing", "greeter_command"):
        sys.modules.pop(name, None)


def test_a_package_adds_a_command(added: list[EntryPoint]) -> None:
    added.append(EntryPoint("greet", "greeter_listing:GREET", GROUP))
    assert "greet" in headstart("--help").stdout.partition("Other:")[2]
    assert "greeter_command" not in sys.modules
    added.append(EntryPoint("wave", "greeter_listing:WAVE", GROUP))
    commands.added.cache_clear()
    assert list(every())[:3] == ["generate", "wave", "drafters"]
    assert headstart("greet", "--name", "Ann").stdout == "Hello Ann\n"
    assert "did you mean '--name'?" in refusal(headstart("greet", "--nam", "Ann"))


def test_what_is_no_longer_whole_is_said_and_hinders_nobody(added: list[EntryPoint]) -> None:
    added += [
        EntryPoint("lost", "greeter_listing:LOST", GROUP),
        EntryPoint("gone", "greeter_is_gone:GREET", GROUP),
        EntryPoint("odd", "sys:path", GROUP),
        EntryPoint("generate", "greeter_listing:GREET", GROUP),
    ]
    shown = headstart("--help").stdout
    assert all(f"  {name} " in shown for name in ("lost", "gone", "odd"))
    for name, place in (("lost", "greeter_without_this"), ("gone", "greeter_is_gone"), ("odd", "sys:path")):
        sentence = refusal(headstart(name, "--help"))
        assert f"command '{name}' cannot be loaded from" in sentence
        assert place in sentence
    assert "Continue a prompt" in headstart("generate", "--help").stdout


def test_each_command_has_its_line_in_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["entry-points"][GROUP]
    found = {name: EntryPoint(name, value, GROUP).load() for name, value in lines.items()}
    assert found == every()
    assert OWN.items() <= found.items()


@pytest.mark.parametrize("name", [*every(), "bench serve"])
def test_a_listed_command_names_options_that_it_has(name: str) -> None:
    group, _, below = name.partition(" ")
    listed: Listed = every()[group].commands[below] if below else every()[group]
    shown = headstart(*name.split(), "--help-all").stdout
    assert set(listed.first) <= set(re.findall(r"--[a-z][\w-]*", shown))
    assert listed.help.endswith(".")


def test_a_command_imports_no_other() -> None:
    script = """
import sys
from headstart.cli.main import app
for path in (["generate", "--help"], ["--help"]):
    try:
        app(path, prog_name="headstart")
    except SystemExit:
        pass
others = {f"headstart.cli.{name}" for name in ("serve", "drafters", "native")} & set(sys.modules)
wings = ("headstart_charts", "headstart_chat.", "headstart_integrations", "headstart_lab.")
wings += ("headstart_speech.", "headstart_train.")
others |= {name for name in sys.modules if name.startswith(wings) and name.partition(".")[2] != "commands"}
sys.exit(f"{others}" if others else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_of_all_commands_reads_no_options_of_engines_and_servers() -> None:
    script = """
import sys
from headstart.cli.main import app
try:
    app(["--help"], prog_name="headstart")
except SystemExit:
    pass
slow = {"pydantic", "rich", "headstart.entrypoints.engine_options"}
slow |= {"headstart_server.arguments", "headstart_integrations"}
sys.exit(f"{slow & set(sys.modules)}" if slow & set(sys.modules) else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
