"""Plain decoding, as a drafter."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import NoOptions
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits


class NoDrafter:
    """Always proposes the empty tree."""

    needs = TargetSignals()
    plain = True
    """See ``abilities.Plain``."""

    def __init__(self, context: DraftContext, options: NoOptions) -> None:
        pass

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [DraftTree.empty()] * len(sequences)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting:
        """See ``Drafter``."""
        return StretchDrafting()

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass
