"""ARCHITECTURE.md says which room may use which; the imports must agree."""

from __future__ import annotations

import ast
import re
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


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, as dotted names below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headstart."):
            found.add((node.module or "").removeprefix("headstart."))
    return found


def test_every_room_has_its_row() -> None:
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms == set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    upwards = {name for name in imported(path) - FREE if RANKS[name.split(".")[0]] < RANKS[room]}
    assert not upwards


@pytest.mark.parametrize("name", sorted(FREE))
def test_the_free_modules_import_nothing_of_ours(name: str) -> None:
    assert imported(SOURCE / f"{name.replace('.', '/')}.py") <= FREE | {"errors"}


@pytest.mark.parametrize("path", [SOURCE / "__init__.py", *MODULES], ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
