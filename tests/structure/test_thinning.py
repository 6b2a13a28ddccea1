"""Thinned parametrisations still show every value: each test's for CI, those of a file together for ``make test``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from thinning import FEW, LEAST, TURNS, isa_of, thinned, values_of


def cases(test: str, marks: dict[str, Sequence[object]], skipped: Sequence[object] = ()) -> list[Any]:
    """Every case of a test that a ``parametrize`` has for each of the names; those with a value in ``skipped`` are."""
    found = []
    for values in product(*marks.values()):
        params: dict[str, object] = {}
        for names, value in zip(marks, values, strict=True):
            split = names.split(",")
            params |= zip(split, value if len(split) > 1 else [value], strict=True)  # type: ignore[call-overload]
        of = [pytest.mark.parametrize(names, given).mark for names, given in marks.items()]
        if set(values) & set(skipped):
            of.append(pytest.mark.skipif(True, reason="not here").mark)

        def markers(name: str | None = None, of: list[pytest.Mark] = of) -> list[pytest.Mark]:
            return [mark for mark in of if name in (None, mark.name)]

        case = SimpleNamespace(
            nodeid=f"file.py::{test}[{values}]", callspec=SimpleNamespace(params=params), iter_markers=markers
        )
        found.append(case)
    return found


@pytest.mark.parametrize("sizes", [(7, 8), (2, 3, 4), (9, 1), (3, 3)], ids=str)
def test_every_value_of_every_parameter_is_shown(sizes: tuple[int, ...]) -> None:
    every = cases("test_a", {f"p{i}": range(size) for i, size in enumerate(sizes)})
    kept = thinned(every)
    assert set().union(*map(values_of, kept)) == set().union(*map(values_of, every))
    assert max(sizes) <= len(kept) < max(sum(sizes), max(sizes) + 1)
    assert kept == [case for case in every if case in kept]


def test_listed_pairs_and_few_cases_are_left_alone() -> None:
    pairs = cases("test_pairs", {"a,b": list(product(range(4), range(3)))})
    few = cases("test_few", {"a": range(2), "b": range(FEW // 2)})
    every = [*pairs, *few, SimpleNamespace(nodeid="test_plain")]
    assert thinned(every) == every


def test_tests_of_a_file_show_a_third_of_the_values_each_and_together_all() -> None:
    tests = [cases(f"test_{number}", {"a": range(30), "b": "xy"}) for number in range(TURNS)]
    kept = thinned([case for test in tests for case in test], thorough=False)
    shown = [{case.callspec.params["a"] for case in kept if case in test} for test in tests]
    assert set().union(*shown) == {*range(30)}
    assert all(len(values) <= 12 for values in shown)
    for test in tests:
        assert {case.callspec.params["b"] for case in kept if case in test} == {*"xy"}


def test_a_few_cases_of_each_test_always_run() -> None:
    small = cases("test_small", {"a": range(LEAST)})
    larger = cases("test_larger", {"a": range(LEAST + 3)})
    kept = thinned([*small, *larger], thorough=False)
    assert kept[:LEAST] == small
    assert len(kept) == 2 * LEAST
    assert kept == [case for case in [*small, *larger] if case in kept]


def test_a_skipped_case_shows_nothing() -> None:
    kept = thinned(cases("test_a", {"a": ["runs", "skipped"], "b": range(9)}, skipped=["skipped"]))
    assert [case.callspec.params["b"] for case in kept if case.callspec.params["a"] == "runs"] == list(range(9))
    assert len(kept) == 10


def test_an_instruction_set_is_told_by_the_parameter_of_that_name() -> None:
    assert [isa_of(case) for case in cases("test_a", {"isa": ["avx2", "generic"]})] == ["avx2", "generic"]
    assert [isa_of(case) for case in cases("test_b", {"a": ["avx2"]})] == [None]
    assert isa_of(SimpleNamespace(nodeid="test_plain")) is None  # type: ignore[arg-type]
