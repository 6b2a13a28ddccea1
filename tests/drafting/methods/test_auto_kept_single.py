"""A drafter that cannot take part in several rounds at once makes those round by round, which take longer: what that
costs is seen, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drafting_toys import ToySequence, verify_greedily
from planned_toys import BUDGET, PREDICTABLE, Oracle, with_oracles

from headstart.drafting.base import TargetSignals
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning import constants as c
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import RoundRecord, SpanRecord, StretchLimits

AHEAD, BEHIND = 0.06, 0.04
"""Seconds that a round by itself takes more than one of several, before guesses and after its pass."""
STATES = TapStates((1,), np.zeros((1, 1, 1), np.float32))
LIMITS = StretchLimits(16, 1.0, 100, 100, frozenset(), BUDGET)


def race(drafter: AutoDrafter, oracle: Oracle, sequence: ToySequence, rounds: int) -> tuple[float, float, int]:
    """Seconds that some rounds took, and plain ones at once for the same tokens; and how many ran by themselves."""
    began, before, single = oracle.clock.now, len(sequence.tokens), 0
    for _ in range(rounds):
        if (drafting := drafter.stretch([sequence], [LIMITS])) is not None:
            oracle.clock.now += 1.0
            said = verify_greedily(sequence, DraftTree.empty(), PREDICTABLE, 0).committed[0]
            lists = ("tokens", "parents", "grades", "path", "gains", "verified", "judged")
            none = {name: list[int]() for name in lists}
            none_taken = dict.fromkeys(("walk_seconds", "read_seconds", "other_seconds", "row_seconds"), 0.0)
            span = SpanRecord(asked=False, token=said, **none)  # type: ignore[arg-type]
            drafting.learn([RoundRecord(spans=[span], draft_seconds=[0.0], pass_seconds=1.0, **none_taken)])
            continue
        single += 1
        oracle.clock.now += AHEAD
        (tree,) = drafter.propose([sequence], [BUDGET])
        oracle.clock.now += 1.0 + BEHIND
        told = replace(verify_greedily(sequence, tree, PREDICTABLE, 0), hidden=STATES, pass_rows=1 + len(tree))
        drafter.observe([replace(told, pass_seconds=1.0, ahead_seconds=AHEAD)])
    return oracle.clock.now - began, float(len(sequence.tokens) - before), single


def started(monkeypatch: pytest.MonkeyPatch, taps: tuple[int, ...]) -> tuple[AutoDrafter, Oracle, ToySequence]:
    drafter, oracles = with_oracles(monkeypatch, only=(1, 0.0))
    assert isinstance(drafter, AutoDrafter)
    oracles["only"].needs = TargetSignals(taps)
    sequence = ToySequence(1, [1, 2, 3, 4])
    drafter.begin(sequence)
    return drafter, oracles["only"], sequence


@pytest.mark.parametrize("taps", [(), (1,)], ids=["asked", "and reading along"])
def test_one_that_brings_nothing_keeps_few_rounds_by_themselves(
    taps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, oracle, sequence = started(monkeypatch, taps)
    oracle.right = False
    taken, plain, single = race(drafter, oracle, sequence, 1000)
    assert taken - plain < 2 * (c.START + c.SHARE * plain) + 1.0
    assert single < 300


def test_gains_that_rounds_by_themselves_eat_up_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guess in thirty holds: less than the tenth of a round that each takes more."""
    drafter, oracle, sequence = started(monkeypatch, ())
    oracle.lengths = 30
    propose = oracle.propose
    oracle.propose = lambda *given: [DraftTree.empty() if oracle.asked % 30 else tree for tree in propose(*given)]  # type: ignore[method-assign]
    taken, plain, _ = race(drafter, oracle, sequence, 1000)
    assert taken - plain < c.START + c.SHARE * plain + 1.0


def test_gains_beyond_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracle, sequence = started(monkeypatch, (1,))
    taken, plain, single = race(drafter, oracle, sequence, 1000)
    assert single > 900
    assert plain > 1.7 * taken
