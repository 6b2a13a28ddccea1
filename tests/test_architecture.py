"""ARCHITECTURE.md says which room may use which; the imports must agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headstart"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
FREE = {"analysis.theory", "analysis.trees"}
"""Pure algebra that imports nothing of ours: anybody may use it."""


def ranks() -> dict[str, int]:
    """Room or top-level module -> its row in the table of rooms, counted from the top."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rooms")[1].split("## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {
        name.removesuffix("/").removesuffix(".py"): row
        for row, cell in enumerate(first_cells)
        for name in re.findall(r"`([^`]+)`", cell)
    }


RANKS = ranks()
INNER = sorted(name for name in RANKS if "/" in name)
"""Rooms inside a room."""


def room_of(parts: Sequence[str]) -> str:
    """The room that a module of this path, or of this dotted name, is in."""
    inner = "/".join(parts[:2])
    return inner if inner in RANKS else parts[0]


def room_of_file(path: Path) -> str:
    return room_of(path.relative_to(SOURCE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, as dotted names below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headstart."):
            found.add((node.module or "").removeprefix("headstart."))
    return found


def test_every_room_has_its_row() -> None:
    divided = {Path(name).parent for name in INNER}
    inner = {str(room / path.name) for room in divided for path in (SOURCE / room).iterdir() if any(path.glob("*.py"))}
    assert {room_of_file(path) for path in MODULES} | inner == set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_down(path: Path) -> None:
    room = RANKS[room_of_file(path)]
    upwards = {name for name in imported(path) - FREE if RANKS[room_of(name.split("."))] < room}
    assert not upwards


@pytest.mark.parametrize("room", INNER)
def test_rooms_inside_a_room_do_not_import_each_other(room: str) -> None:
    siblings = {name for name in INNER if Path(name).parent == Path(room).parent} - {room}
    names = {name for path in (SOURCE / room).rglob("*.py") for name in imported(path)}
    assert names
    assert not [name for name in names if room_of(name.split(".")) in siblings]


@pytest.mark.parametrize("name", sorted(FREE))
def test_the_free_modules_import_nothing_of_ours(name: str) -> None:
    assert imported(SOURCE / f"{name.replace('.', '/')}.py") <= FREE | {"errors"}


@pytest.mark.parametrize("path", [SOURCE / "__init__.py", *MODULES], ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
