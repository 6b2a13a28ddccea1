"""ARCHITECTURE.md says which room may use which; the imports must agree."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from headstart import _HOMES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headstart"
WINGS = {
    "headstart_chat",
    "headstart_charts",
    "headstart_integrations",
    "headstart_lab",
    "headstart_server",
    "headstart_speech",
    "headstart_train",
}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
METHODS = SOURCE / "drafting" / "methods"
MOST_ENTRIES = 18
MOST_CORE_LINES, MOST_BYTES, MOST_REPLACED = 62_000, 45_000_000, 288
DOCSTRING = re.compile(r'(#.*\n|\s)*"""\s*[^\s"]')


def rows() -> list[list[list[str]]]:
    """The names in each row of the table of rooms, as parts of paths, counted from the top."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rooms of the core")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [
        [name.removesuffix("/").removesuffix(".py").split("/") for name in re.findall(r"`([^`]+)`", c)] for c in cells
    ]


ROWS = rows()


def rank(parts: Sequence[str]) -> int:
    """The row of a module, given by its path or dotted name: that of the longest name which it is below."""
    found = {
        len(name): row
        for row, names in enumerate(ROWS)
        for name in names
        if len(name) <= len(parts) and all(fnmatch(part, pattern) for part, pattern in zip(parts, name, strict=False))
    }
    return found[max(found)]


def parts_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
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
import torch, headstart.sampling.params
from headstart import LLM, entrypoints
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
        "engine.engine", "sampling.params", "entrypoints.llm", "entrypoints", "models.config", "drafting.base",
        "drafting.options",        "text.chat", "backends.native.backend", "cli.main",
    }  # fmt: skip


def test_every_row_has_its_room() -> None:
    used = {rank(parts_of(path)) for path in MODULES}
    assert used == set(range(len(ROWS)))


def test_the_core_has_few_entries() -> None:
    listed = subprocess.run(["git", "ls-files", "src/headstart"], cwd=ROOT, capture_output=True, text=True, check=True)
    entries = {line.split("/")[2] for line in listed.stdout.splitlines()}
    assert len(entries) <= MOST_ENTRIES
    assert {entry for entry in entries if "." in entry} == {"__init__.py", "__main__.py", "errors.py", "py.typed"}


def test_places_to_add_something_are_there() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Where do I add")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| a")]
    assert len(rows) >= 10
    for row in rows:
        for name in re.findall(r"`([\w*/]+(?:/|\.py)|(?:tests|src)/[\w/]+)`", row):
            pattern = name.replace("NAME", "*").rstrip("/")
            assert any(list(base.glob(pattern)) for base in (SOURCE, ROOT, ROOT / "src")), name


def test_rooms_of_the_wings_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rooms of the wings")[1].split("\n## ")[0]
    pages = dict(re.findall(r"^\*\*`(headstart_\w+)`\*\*(.*?)(?=^\*\*|\Z)", text, re.M | re.S))
    assert set(pages) == WINGS
    for wing, page in pages.items():
        tables = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")] or [page]
        names = [name for cell in tables for name in re.findall(r"`([\w*/]+(?:/|\.py))`", cell)]
        assert names
        assert [name for name in names if not list((ROOT / "src" / wing).glob(name.rstrip("/")))] == []


def test_the_house_stays_small() -> None:
    """The core's Python in lines, the checkout in bytes, and replacements in tests: lower these, do not raise them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    core = [path for path in files if SOURCE in path.parents and path.suffix == ".py"]
    tests = [path for path in files if ROOT / "tests" in path.parents and path.suffix == ".py"]
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in core) <= MOST_CORE_LINES
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert sum(path.read_text(encoding="utf-8").count("monkeypatch.setattr(") for path in tests) <= MOST_REPLACED


def test_dependencies_point_down() -> None:
    upwards = {
        f"{'/'.join(parts_of(path))} imports {name}"
        for path in MODULES
        for name in imported(path)
        if rank(name.split(".")) < rank(parts_of(path))
    }
    assert not upwards


def test_the_core_imports_no_wing() -> None:
    importing = re.compile(rf"^\s*(?:from|import) ({'|'.join(WINGS)})\b", re.M)
    assert not [path for path in SOURCE.rglob("*.py") if importing.search(path.read_text(encoding="utf-8"))]


def allowed_imports() -> dict[str, set[str]]:
    """Wing -> the other wings that it may import, as the table of packages says."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## A core and its wings")[1].split("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `src/headstart_")]
    return {row[1].strip(" `").removeprefix("src/"): set(re.findall(r"`(headstart_\w+)`", row[3])) for row in rows}


def test_wings_import_each_other_as_the_table_says_and_in_one_direction() -> None:
    allowed = allowed_imports()
    assert set(allowed) == WINGS
    importing = re.compile(rf"^\s*(?:from|import) ({'|'.join(WINGS)})\b", re.M)
    found = {
        wing: set().union(
            *(importing.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / wing).rglob("*.py"))
        )
        - {wing}
        for wing in WINGS
    }
    assert found == allowed
    TopologicalSorter(found).prepare()  # raises CycleError


@pytest.mark.parametrize("folder", sorted(METHODS.glob("*/")), ids=lambda path: path.name)
def test_methods_do_not_import_each_others_drafters(folder: Path) -> None:
    others = {
        name
        for path in folder.glob("*.py")
        for name in imported(path)
        if name.startswith("drafting.methods.") and name.split(".")[2] != folder.name and name.endswith(".drafter")
    }
    assert not others


def test_drafters_know_no_backend() -> None:
    """What they run beside the target's passes, the target's backend hands out (``BackendKit``)."""
    knowing = {
        path.stem
        for path in (SOURCE / "drafting").rglob("*.py")
        # A method's row names what runs its heads (``PASSES``); nobody imports that before a head is run.
        if path.parent.parent != METHODS or path.name != "__init__.py"
        for name in imported(path)
        if name.split(".")[0] == "backends"
    }
    assert not knowing


def test_single_methods_are_known_to_their_folder_and_to_what_runs_their_heads() -> None:
    allowed = {
        *(f"backends/native/{name}.py" for name in ("heads", "masked_pass", "block_pass", "caching_pass")),
        *(f"backends/torch/{name}.py" for name in ("eagle_pass", "masked_pass", "block_pass", "block_factors")),
    }
    knowing = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        if METHODS not in path.parents
        for name in imported(path)
        if name.startswith("drafting.methods.")
    }
    assert knowing == allowed


def test_every_file_says_what_it_is_for() -> None:
    silent = [
        path
        for package in ("headstart", *WINGS)
        for path in (ROOT / "src" / package).rglob("*.py")
        if not DOCSTRING.match(path.read_text(encoding="utf-8"))
    ]
    assert not silent
