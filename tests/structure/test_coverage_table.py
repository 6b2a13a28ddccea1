"""The code and the tests that docs/coverage.md names for each method exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


METHODS = rows("| method | paper | code | test |")
ERRORS = rows("| source | printed | right | shown by |")


def paths(cell: str, base: str) -> list[Path]:
    """Files named in a cell: code spans that look like paths, below ``base`` or below the repository."""
    names = [name for name in re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"[\w./]+(\.(py|md|cpp|toml)|/)", name)]
    return [ROOT / name if (ROOT / name).exists() else ROOT / base / name for name in names]


def test_there_are_rows_to_check() -> None:
    assert len(METHODS) > 40
    assert len(ERRORS) > 15


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row[0][:60])
def test_code_and_tests_of_a_method_exist(row: list[str]) -> None:
    _, _, code, test = row
    sources, tests = paths(code, "src/headstart"), paths(test, "tests")
    assert sources
    assert tests
    assert [path for path in sources + tests if not path.exists()] == []


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row[0] + row[1][:30])
def test_errors_are_shown_by_tests_that_exist(row: list[str]) -> None:
    shown_by = row[3]
    files = paths(shown_by, "tests") or [ROOT / "tests/lab/test_source_errors.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"Test\w+|test_\w+(?!\w*\.py)\b(?!\.py)", shown_by):
        assert re.search(rf"\b(class|def) {name}\b", text), name
