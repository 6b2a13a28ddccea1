"""The common part of drafters whose guesses follow from the sequence's own tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals


class TokenState(Protocol):
    """What a drafter remembers of one sequence."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn further tokens of the sequence: first the prompt, later what each round committed."""
        ...


State = TypeVar("State", bound=TokenState)


class HistoryDrafter(ABC, Generic[State]):
    """Keeps one state for each sequence and shows it every prompt and committed token exactly once.

    A state never sees a rejected token, so a sequence that was preempted goes on as if nothing had happened.
    """

    needs = TargetSignals()

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._lengths: dict[int, int] = {}

    @abstractmethod
    def new_state(self, sequence: SequenceView) -> State:
        """A state that has seen none of the sequence's tokens yet."""

    @abstractmethod
    def draft(self, state: State, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        """Guesses for one sequence; both parts of the budget are at least 1."""

    def begin(self, sequence: SequenceView) -> None:
        state = self.new_state(sequence)
        state.extend(sequence.tokens)
        self._states[sequence.id] = state
        self._lengths[sequence.id] = len(sequence.tokens)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [
            self.draft(self._states[sequence.id], sequence, budget)
            if budget.nodes > 0 and budget.depth > 0
            else DraftTree.empty()
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            sequence = outcome.sequence
            seen = self._lengths.get(sequence.id)
            if seen is not None and seen < len(sequence.tokens):
                self._states[sequence.id].extend(sequence.tokens[seen:])
                self._lengths[sequence.id] = len(sequence.tokens)

    def end(self, sequence_id: int) -> None:
        self._states.pop(sequence_id, None)
        self._lengths.pop(sequence_id, None)
