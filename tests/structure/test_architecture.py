"""ARCHITECTURE.md says which room may use which; the imports must agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from headstart import _HOMES

ROOT = Path(__file__).parents[2]
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
    return names_imported(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).parts[:-1])


def names_imported(source: str, package: Sequence[str]) -> set[str]:
    """Modules of ours that a source in ``package`` imports in any form, as dotted names below headstart."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["headstart", *package][: len(package) + 2 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # What is imported from a package may be a module in it.
            found.update(f"{module}.{alias.name}" if _is_package(module) else module for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # What is imported by its name: import_module, entry points, registries.
            found.update(name for name in re.findall(r"^headstart(?:\.\w+)+(?=$|:)", node.value) if _is_module(name))
    ours = {_home(name.removeprefix("headstart.")) for name in found if name.startswith("headstart.")}
    return {name for name in ours if not name.startswith("__")}


def _is_package(module: str) -> bool:
    return module.split(".")[0] == "headstart" and SOURCE.joinpath(*module.split(".")[1:]).is_dir()


def _is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


def _home(name: str) -> str:
    """The module of a name that the package itself hands out; others as they are."""
    return _HOMES.get(name, name)


def test_imports_of_every_form_are_seen() -> None:
    source = """
import headstart.engine.engine as engine
import torch, headstart.server.app
from headstart import LLM, request
from headstart.models import config
from headstart.models.config import ModelConfig
from . import base
from .options import NoOptions
from ..text.chat import ChatTemplate
module = import_module("headstart.backends.native.backend")
entry = "headstart.cli.main:main"
text = "headstart.nothing but a sentence"
"""
    assert names_imported(source, ["drafting"]) == {
        "engine.engine", "server.app", "llm", "request", "models.config", "drafting.base", "drafting.options",
        "text.chat", "backends.native.backend", "cli.main",
    }  # fmt: skip


def test_every_room_has_its_row() -> None:
    divided = {Path(name).parent for name in INNER}
    inner = {str(room / path.name) for room in divided for path in (SOURCE / room).iterdir() if any(path.glob("*.py"))}
    assert {room_of_file(path) for path in MODULES} | inner == set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_down(path: Path) -> None:
    room = RANKS[room_of_file(path)]
    upwards = {name for name in imported(path) - FREE if RANKS[room_of(name.split("."))] < room}
    assert not upwards


@pytest.mark.parametrize("room", [room for room in INNER if room.startswith("drafting/")])
def test_rooms_inside_a_room_do_not_import_each_other(room: str) -> None:
    siblings = {name for name in INNER if Path(name).parent == Path(room).parent} - {room}
    names = {name for path in (SOURCE / room).rglob("*.py") for name in imported(path)}
    assert names
    assert not [name for name in names if room_of(name.split(".")) in siblings]


@pytest.mark.parametrize("path", sorted((SOURCE / "drafting").rglob("*.py")), ids=lambda path: path.stem)
def test_drafters_know_no_backend(path: Path) -> None:
    """What they run beside the target's passes, the target's backend hands out (``BackendKit``)."""
    assert not [name for name in imported(path) if name.split(".")[0] == "backends"]


@pytest.mark.parametrize("name", sorted(FREE))
def test_the_free_modules_import_nothing_of_ours(name: str) -> None:
    assert imported(SOURCE / f"{name.replace('.', '/')}.py") <= FREE | {"errors"}


@pytest.mark.parametrize("path", [SOURCE / "__init__.py", *MODULES], ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
