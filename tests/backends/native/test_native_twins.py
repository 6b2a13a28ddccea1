"""Pairs of Python and C++ that do the same: nobody changes one half without the tests that hold it to the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import twins
from twins import NATIVE, PAIRS, ROOT, Pair, code_of


@pytest.mark.parametrize("name", PAIRS)
def test_both_halves_are_as_they_were_when_their_tests_passed(name: str) -> None:
    pair = PAIRS[name]
    halves = ", ".join((*pair.python, *pair.native))
    mend = f"{halves}: one has changed. Let the other follow, then run `python tests/backends/native/twins.py`."
    assert twins.noted().get(name) == pair.digest(), mend


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_their_tests_exist(pair: Pair) -> None:
    assert pair.tests
    for test in pair.tests:
        file, _, function = test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not function or re.search(rf"^def {function}\(", text, flags=re.MULTILINE)


def test_every_header_of_rounds_has_a_twin() -> None:
    named = {name for pair in PAIRS.values() for name in pair.native}
    assert named == {path.relative_to(NATIVE).as_posix() for path in (NATIVE / "rounds").iterdir()}


@pytest.mark.parametrize(("suffix", "comment"), [(".py", "# said"), (".py", '"""Said."""'), (".h", "// said")])
def test_code_alone_counts(tmp_path: Path, suffix: str, comment: str) -> None:
    first, second, third = (tmp_path / f"{name}{suffix}" for name in "abc")
    first.write_text("x = 1;\n")
    second.write_text(f"{comment}\nx  =  1;\n")
    third.write_text("x = 2;\n")
    assert code_of(first) == code_of(second) != code_of(third)
