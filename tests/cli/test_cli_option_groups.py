"""A dataclass of options stands for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from headstart.cli.option_groups import with_groups

app = typer.Typer()
called: list[tuple[str, Size, bool]] = []


@dataclass(frozen=True)
class Size:
    """Two options."""

    width: Annotated[int, typer.Option("--width", "-w", min=1, help="How wide.")] = 2
    tall: bool = False


@app.command()
@with_groups
def draw(*, name: Annotated[str, typer.Argument(help="What to draw.")], size: Size, twice: bool = False) -> None:
    """Draw something."""
    called.append((name, size, twice))


def test_the_command_gets_what_was_given_and_else_the_defaults() -> None:
    called.clear()
    for arguments in (["tree"], ["house", "-w", "5", "--tall", "--twice"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert called == [("tree", Size(), False), ("house", Size(5, True), True)]


def test_options_keep_their_help_bounds_and_place() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Draw something." in shown
    assert "How wide." in shown
    assert shown.index("--width") < shown.index("--tall") < shown.index("--twice")
    assert "--size" not in shown
    assert CliRunner().invoke(app, ["tree", "--width", "0"]).exit_code == 2
