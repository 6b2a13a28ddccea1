"""Drafters of other packages that fail among others: ``auto`` goes on without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planned_toys import PREDICTABLE, VOCAB, begin, decode, eager_planner

from headstart.drafting.base import DraftBudget, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchLimits

SOURCE = """
from headstart.drafting.base import TargetSignals
from headstart.passes.draft_tree import DraftTree

class Faulty:
    needs = TargetSignals()
    asked = 0
    right = lambda sequences: [DraftTree.empty()] * len(sequences)
    begin = observe = end = lambda given: None

    def __init__(self, context, options):
        for part in ("begin", "observe", "end"):
            setattr(self, part, getattr(Faulty, part))

    def propose(self, sequences, budgets):
        Faulty.asked += 1
        return Faulty.right(sequences)
"""


def broken(*given: object) -> None:
    raise KeyError("of their own")


def out_of_memory(*given: object) -> None:
    raise MemoryError


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """A drafter that an installed package brings."""
    (tmp_path / "faulty_drafter.py").write_text(SOURCE)
    info = tmp_path / "faulty_drafter-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-drafter\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[headstart.drafters]\nfaulty = faulty_drafter:Faulty\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import faulty_drafter

    yield faulty_drafter.Faulty
    sys.modules.pop("faulty_drafter", None)


@pytest.mark.parametrize(
    ("part", "does"),
    [
        ("begin", broken),
        ("observe", broken),
        ("end", broken),
        ("right", broken),
        ("begin", out_of_memory),
        ("right", out_of_memory),
        ("proceed", broken),
        ("proceed", lambda *given: DraftTree.chain([VOCAB])),
        ("right", lambda sequences: []),
        ("right", lambda sequences: [None] * len(sequences)),
        ("right", lambda sequences: [DraftTree.chain([VOCAB])] * len(sequences)),
        ("right", lambda sequences: [DraftTree.chain([-1])] * len(sequences)),
        ("right", lambda sequences: [DraftTree.chain([1] * 100_000)] * len(sequences)),
    ],
    ids=[
        "begin",
        "observe",
        "end",
        "propose",
        "no memory at the beginning",
        "no memory for guesses",
        "proceed",
        "unknown further token",
        "too few",
        "no tree",
        "unknown token",
        "negative token",
        "a tree beyond its budget",
    ],
)
def test_one_that_fails_is_asked_no_more_and_the_others_guess_on(
    part: str, does: Callable[[object], object], faulty: type, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(faulty, part, does)
    drafter = eager_planner(DraftContext(VOCAB), {"drafters": "faulty+suffix"})
    first, second = begin(drafter), begin(drafter, 2)
    decode(drafter, [first, second], PREDICTABLE, lambda rows: 1000.0, 20)
    drafter.end(second.id)
    asked = faulty.asked
    _, speedup = decode(drafter, [first], PREDICTABLE, lambda rows: 1000.0, 60)
    assert faulty.asked == asked
    assert speedup > 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert "auto guesses without it: drafter 'faulty' of package faulty-drafter 0.1 failed with" in told


def test_one_that_fails_at_rounds_in_one_call_is_asked_no_more(faulty: type, caplog: pytest.LogCaptureFixture) -> None:
    faulty.stretch = broken
    drafter = eager_planner(DraftContext(VOCAB), {"drafters": "faulty+suffix"})
    sequence, limits = begin(drafter), StretchLimits(16, 1.0, 100, 100, frozenset(), DraftBudget(4, 4))
    drafter.stretch([sequence], [limits])
    assert "auto guesses without it" in caplog.text
    _, speedup = decode(drafter, [sequence], PREDICTABLE, lambda rows: 1000.0, 60)
    assert faulty.asked == 0
    assert speedup > 2


def test_one_whose_needs_become_nonsense_is_asked_no_more(faulty: type, caplog: pytest.LogCaptureFixture) -> None:
    drafter = eager_planner(DraftContext(VOCAB), {"drafters": "faulty+suffix"})
    sequence = begin(drafter)
    faulty.needs = None
    _, speedup = decode(drafter, [sequence], PREDICTABLE, lambda rows: 1000.0, 60)
    assert faulty.asked <= 1
    assert drafter.needs == TargetSignals()
    assert "auto guesses without it" in caplog.text
    assert speedup > 2


@pytest.mark.usefixtures("faulty")
def test_own_drafters_that_fail_are_no_secret() -> None:
    made: AutoDrafter = eager_planner(DraftContext(VOCAB), {"drafters": "faulty+suffix"})
    made._members[1].drafter.begin = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyError, match="of their own"):
        begin(made)
