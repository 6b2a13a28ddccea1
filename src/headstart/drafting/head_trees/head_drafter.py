"""A drafter whose head reads along with the target: it has a reader, and a way in which its trees grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.head_trees.draft_vocabulary import Drafted
from headstart.drafting.head_trees.read_along import Reader
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import StretchDrafting, StretchLimits


class TreeGrowth(ABC):
    """How drafts are made of what a head has read."""

    @abstractmethod
    def grow(self, drafted: Drafted, budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """Drafts for sequences that have rows to be read first."""

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        return None


class HeadDrafter:
    """Sub-classes say what their head is, and how its trees grow.

    Args:
        reader: how the head reads texts.
        growth: how its trees grow.
    """

    def __init__(self, reader: Reader, growth: TreeGrowth) -> None:
        self.reader, self.growth = reader, growth
        self.needs = TargetSignals(taps=reader.taps)

    @property
    def nbytes(self) -> int:
        """Of the head, and of what it may keep of prefixes."""
        return self.reader.nbytes

    def begin(self, sequence: SequenceView) -> None:
        self.reader.begin(sequence)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        self.reader.fork(source, sequence)

    def end(self, sequence_id: int) -> None:
        self.reader.end(sequence_id)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self.reader.observe(outcomes)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = [DraftTree.empty()] * len(sequences)
        active = [
            i
            for i, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True))
            if min(budget.nodes, budget.depth) > 0 and self.reader.is_ready(sequence)
        ]
        if active:
            drafted = self.reader.prepared([sequences[i] for i in active])
            for i, tree in zip(active, self.growth.grow(drafted, [budgets[i] for i in active]), strict=True):
                trees[i] = tree
        return trees

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        return self.growth.stretch(sequences, limits)
