"""Work in place of time: what decoding asks of a machine, the same on all of them and in every run.

A planner that is to be judged by work plans by it, too: its clock and its passes (``PlannerParts``) count bytes. So
its choices repeat, and a test can bound them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.drafting.abilities import bytes_of
from headstart.drafting.base import DraftBudget, Drafter, SequenceView
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_trials import TriedPass
from headstart.passes.draft_tree import DraftTree
from headstart_lab.wrapper import DrafterWrapper, WatchedRound

_ROW_SHARE = 1 / 32
"""What a row costs beside the weights that its pass reads, to a planner."""
_QUESTION_SHARE = 1 / 1000
"""The same of a drafter's guesses for a sequence."""
_TRIED_ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass
class Work:
    """Counted so far."""

    passes: int = 0
    """Of the target."""
    rows: int = 0
    """That went through them."""
    calls: int = 0
    """Of drafters: questions, each about some sequences at once."""
    bytes: int = 0
    """Of weights that were read: the target's in each pass, a drafter's in each call."""

    def taken(self) -> Work:
        """What was counted since the last time; counting begins anew."""
        found = replace(self)
        self.passes = self.rows = self.calls = self.bytes = 0
        return found


class WorkCounter(DrafterWrapper):
    """Hands everything on to a drafter, and counts.

    Args:
        work: what it adds to.
        weight_bytes: of the target.
        counts_calls: False: the drafter's own parts count them.
    """

    def __init__(self, drafter: Drafter, work: Work, weight_bytes: int, counts_calls: bool) -> None:
        super().__init__(drafter)
        self._work, self._weight_bytes, self._counts_calls = work, weight_bytes, counts_calls

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._counts_calls:
            count_call(self._work, self.drafter)
        return super().propose(sequences, budgets)

    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        for each in rounds:
            self._work.passes += 1
            self._work.rows += each.outcomes[0].pass_rows
            self._work.bytes += self._weight_bytes


def count_call(work: Work, drafter: Drafter) -> None:
    """A drafter was asked."""
    work.calls += 1
    work.bytes += bytes_of(drafter)


def counting_parts(work: Work, weight_bytes: int) -> PlannerParts:
    """Parts of a planner that weighs bytes, and whose drafters' calls are counted. Rounds are run one by one."""

    def of_pass(rows: int) -> float:
        return weight_bytes * (1 + _ROW_SHARE * rows)

    asked = 0.0

    class CountedMember(Member):
        def __post_init__(self) -> None:
            super().__post_init__()
            propose, drafter = self.drafter.propose, self.drafter

            def counted(sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
                nonlocal asked
                count_call(work, drafter)
                asked += bytes_of(drafter) + _QUESTION_SHARE * weight_bytes * len(sequences)
                return propose(sequences, budgets)

            drafter.propose = counted  # type: ignore[method-assign]

    return PlannerParts(
        member=CountedMember,
        trials=lambda runner: [TriedPass(rows, of_pass(rows)) for rows in _TRIED_ROWS],
        stretch=lambda *told: None,
        clock=lambda: asked,
        pass_seconds=lambda outcome: of_pass(outcome.pass_rows),
    )
