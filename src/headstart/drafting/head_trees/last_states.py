"""Heads that read no more of a text than the target's state at its last position but the root's, and keep no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView
from headstart.passes.batch import FINAL_TAP
from headstart.passes.draft_tree import DraftTree


class LastStates:
    """The target's last state of each sequence, as passes bring them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Tensor]] = {}
        """id -> position, and the state there [target hidden]."""

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            kept = outcome.kept_rows
            if kept:
                # A copy: a slice would hold on to the states of the whole pass.
                state = torch.from_numpy(outcome.hidden[FINAL_TAP][kept[-1]].copy())
                self._known[outcome.sequence.id] = (outcome.first_position + len(kept) - 1, state)

    def fork(self, source_id: int, sequence_id: int) -> None:
        self.forget(sequence_id)
        if source_id in self._known:
            self._known[sequence_id] = self._known[source_id]

    def forget(self, sequence_id: int) -> None:
        self._known.pop(sequence_id, None)

    def reach(self, sequence: SequenceView) -> bool:
        """Whether the state is known of all tokens but the root."""
        position, _ = self._known.get(sequence.id, (-1, None))
        return 0 <= position == len(sequence.tokens) - 2

    def of(self, sequences: Sequence[SequenceView]) -> Tensor:
        """[sequence, target hidden]."""
        return torch.stack([self._known[sequence.id][1] for sequence in sequences])


def grow_where_ready(
    sequences: Sequence[SequenceView],
    budgets: Sequence[DraftBudget],
    is_ready: Callable[[SequenceView], bool],
    grow: Callable[[list[SequenceView], list[DraftBudget]], list[DraftTree]],
) -> list[DraftTree]:
    """One tree for each sequence: those that have room and are ready are grown together, the others' are empty."""
    trees = [DraftTree.empty()] * len(sequences)
    active = [
        place
        for place, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True))
        if min(budget.nodes, budget.depth) > 0 and is_ready(sequence)
    ]
    if active:
        grown = grow([sequences[place] for place in active], [budgets[place] for place in active])
        for place, tree in zip(active, grown, strict=True):
            trees[place] = tree
    return trees
