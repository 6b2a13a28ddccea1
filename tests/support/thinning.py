"""Which tests run: all where files or tests are named, else fewer.

``pytest --thorough`` (``make test-thorough``, which CI runs) runs of a large parametrisation as many cases as show each
value of each parameter. ``make test`` runs of those that show one value more each a third, in turns from test to test
of a file, and leaves out what is marked ``thorough`` (what takes seconds, where cheaper tests of the same thing would
find most faults). ``pytest --all`` (``make test-all``) runs every combination.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

FEW = 6
"""So many cases of a test show each of their values."""
LEAST = 4
"""So many cases of a test always run."""
TURNS = 3
"""Each of so many tests of a file shows other values than the others, where a value takes a case of its own."""


def thorough_but(kept: Collection[object], values: Iterable[Any]) -> list[Any]:
    """The values of a parametrisation, those of several names as tuples: all but those in ``kept`` are thorough."""
    values = list(values)
    assert all(value in values for value in kept), f"of {kept}, which make test keeps, some are no values"
    return [
        value
        if value in kept
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.thorough)
        for value in values
    ]


def runs_all(config: pytest.Config) -> bool:
    """Whether every combination was asked for, or tests by their names."""
    return bool(config.getoption("--all")) or config.args_source is pytest.Config.ArgsSource.ARGS


def thinned(items: Sequence[pytest.Item], thorough: bool = True) -> list[pytest.Item]:
    """Of each test's cases those that show each value of each of its parameters, in their order; of those that show one
    value each a third, unless ``thorough``."""
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    turns = Counter[str]()
    kept = set()
    for name, cases in tests.items():
        file = name.partition("::")[0]
        chosen = _covering(cases) if thorough else _in_turn(cases, turns[file])
        turns[file] += len(cases) > LEAST
        kept |= {id(case) for case in chosen}
    return [item for item in items if id(item) in kept]


def values_of(case: pytest.Item) -> set[tuple[object, ...]]:
    """What each parameter of a case is; the names of one ``parametrize`` are one parameter."""
    given = dict(case.callspec.params)  # type: ignore[attr-defined]
    found = set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = [name.strip() for name in names if name.strip() in given]
        found.add(tuple((name, id(given.pop(name))) for name in names))
    return found | {((name, id(value)),) for name, value in given.items()}


def isa_of(case: pytest.Item) -> str | None:
    """The instruction set that a case is about (``native_here.tested_sets``)."""
    callspec = getattr(case, "callspec", None)
    isa = None if callspec is None else callspec.params.get("isa")
    return isa if isinstance(isa, str) or isa is None else getattr(isa, "name", None)


def is_skipped(case: pytest.Item) -> bool:
    """Whether a mark skips it here: it shows nothing."""
    return any(mark.name == "skip" or mark.args[:1] == (True,) for mark in case.iter_markers() if "skip" in mark.name)


def _in_turn(cases: Sequence[pytest.Item], turn: int) -> Sequence[pytest.Item]:
    """Of the cases that show each value those that show several at once, and a third of the others: another third in
    each of three turns."""
    if len(cases) <= LEAST or not hasattr(cases[0], "callspec"):
        return cases
    several, single, seen = list[pytest.Item](), list[pytest.Item](), set[tuple[object, ...]]()
    for case in _covering(cases):
        fresh = values_of(case) - seen
        seen |= fresh
        (several if len(fresh) > 1 else single).append(case)
    first = turn % TURNS
    rest = [case for start in range(first, first + TURNS) for case in single[start % TURNS :: TURNS]]
    return several + rest[: max(len(single[first::TURNS]), LEAST - len(several))]


def _covering(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    if len(cases) <= FEW or not hasattr(cases[0], "callspec"):
        return cases
    shown = {id(case): values_of(case) for case in cases}
    unseen = set().union(*shown.values())
    kept = []
    # What runs comes first; what is skipped says so once for each value.
    for some in ([case for case in cases if not is_skipped(case)], [case for case in cases if is_skipped(case)]):
        while some and (unseen & set().union(*(shown[id(case)] for case in some))):
            best = max(some, key=lambda case: len(shown[id(case)] & unseen))
            unseen -= shown[id(best)]
            kept.append(best)
    return kept
