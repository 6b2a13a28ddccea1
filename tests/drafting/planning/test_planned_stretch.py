"""The planner in rounds that are run at once."""

from __future__ import annotations

import pytest
from drafting_toys import ToySequence

from headstart.drafting.base import DraftBudget, Drafter, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.planning.allowances import Load, Safeguard
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.planned_stretch import Lane, PlannedStretch
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.drafting.registry import create_drafter
from headstart.passes.rounds import RoundRecord, SpanRecord, StretchLimits

ALONE = Load.of([ToySequence(1, [1, 2, 3])])


@pytest.fixture
def member() -> Member:
    """Reads the target's states."""
    drafter: Drafter = create_drafter("suffix", DraftContext(12))
    drafter.needs = TargetSignals((1,))
    return Member(drafter, 1)


def test_reading_along_is_charged_though_nobody_guesses(member: Member) -> None:
    """Or it would go on for ever beside plain rounds."""
    followed = Followed.begin(InnerSequence.of(ToySequence(1, [1, 2, 3])), [member])
    followed.heard[0] = True
    limits = StretchLimits(16, 1.0, 100, 100, frozenset(), DraftBudget(nodes=4, depth=4))
    safeguard, lane = Safeguard(), Lane(0, member, [0])
    for _ in range(8):
        safeguard.decoded(ALONE, [1.0])
    stretch = PlannedStretch([followed], [limits], ALONE, [lane], [[None]], RoundCosts(), safeguard)
    span = SpanRecord(
        asked=True, tokens=[], parents=[], grades=[], path=[], token=5, gains=[0.0], verified=[0], judged=[0]
    )
    done = RoundRecord(
        spans=[span],
        draft_seconds=[0.0, 0.0],
        pass_seconds=1.0,
        walk_seconds=0.0,
        read_seconds=0.5,
        other_seconds=0.0,
        row_seconds=0.0,
    )
    before = member.hearing[ALONE.size].rounds
    stretch.learn([done] * 4)
    assert member.hearing[ALONE.size].rounds == pytest.approx(before - 2.0)
    assert safeguard.plain.seconds(ALONE) == 1.0, "it is no part of a plain round"
    followed.allowance(0, member, ALONE).settle(0.0, 100.0)
    member.read(ALONE, 100.0, 1.0, 0.0)
    again = Lane(0, member, [0])
    PlannedStretch.of([followed], [limits], [again], RoundCosts(), safeguard, lambda: 0.0)
    assert not again.follows
    assert followed.unheard[0]
