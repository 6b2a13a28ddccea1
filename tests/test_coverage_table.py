"""docs/coverage.md says of every row what is so: what it calls done exists, the tests it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STATES = ("done", "not yet", "left out")
TEXT = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """Cells of every row of the tables that start with this header."""
    found, inside = [], False
    for line in TEXT.splitlines():
        if line == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


ITEMS = rows("| item | seed § | file | test | state |")
ERRORS = rows("| seed § | printed | right | shown by |")


def paths(cell: str, base: str) -> list[Path]:
    """Files named in a cell: code spans that look like paths, below ``base`` or below the repository."""
    names = [name for name in re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"[\w./]+(\.(py|md|cpp|toml)|/)", name)]
    return [ROOT / name if (ROOT / name).exists() else ROOT / base / name for name in names]


def is_defined(name: str, text: str) -> bool:
    """Whether a source defines a name or assigns to it; that it only uses it does not count."""
    return bool(re.search(rf"\b(def|class) {name}\b|^\s*(self\.)?{name}(: [^=\n]+)?( =|$)", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("    def commit(self): ...", True),
        ("class A:\n    commit: int", True),
        ("commit = 3", True),
        ("from a import commit\nx = commit()\n# commit", False),
    ],
)
def test_what_only_uses_a_name_does_not_define_it(text: str, holds: bool) -> None:
    assert is_defined("commit", text) is holds


def test_there_are_rows_to_check() -> None:
    assert len(ITEMS) > 150
    assert len(ERRORS) > 20


@pytest.mark.parametrize("row", ITEMS, ids=lambda row: row[0][:60])
def test_states_are_known_and_done_rows_exist(row: list[str]) -> None:
    assert len(row) == 5
    _, _, file, test, state = row
    assert state.startswith(STATES)
    if state.startswith("done"):
        sources, tests = paths(file, "src/headstart"), paths(test, "tests")
        assert sources or file == "–"  # a row about a test has no file of its own
        assert tests
        missing = [path for path in sources + tests if not path.exists()]
        assert not missing
        text = "".join(path.read_text(encoding="utf-8") for path in sources if path.suffix == ".py")
        named = {part for name in re.findall(r"\(`([^)]*)`\)", file) for part in re.findall(r"\w+", name)}
        assert {part for part in named if not is_defined(part, text)} == set()


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row[0])
def test_errors_are_shown_by_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4
    shown_by = row[3]
    if shown_by == "arithmetic" or shown_by.startswith("not yet"):
        return
    files = paths(shown_by, "tests") or [ROOT / "tests/analysis/test_source_errors.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"Test\w+|test_\w+(?!\w*\.py)\b(?!\.py)", shown_by):
        assert re.search(rf"\b(class|def) {name}\b", text), name
