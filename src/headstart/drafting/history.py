"""The common part of drafters whose guesses follow from the sequence's own tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.passes.draft_tree import DraftTree


class TokenState(Protocol):
    """What a drafter remembers of one sequence."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn further tokens of the sequence: first the prompt, later what each round committed."""
        ...


State = TypeVar("State", bound=TokenState)


class HistoryDrafter(ABC, Generic[State]):
    """Keeps one state for each sequence and shows it every prompt and committed token exactly once.

    What a sequence said is learnt only when guesses are wanted: a drafter that is not asked costs nothing. A state
    never sees a rejected token, so a sequence that was preempted goes on as if nothing had happened.
    """

    needs = TargetSignals()

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._sequences: dict[int, SequenceView] = {}
        self._lengths: dict[int, int] = {}

    @abstractmethod
    def new_state(self, sequence: SequenceView) -> State:
        """A state that has seen none of the sequence's tokens yet."""

    def read_source(self, state: State, tokens: Sequence[int]) -> None:
        """Show a new state what the target's encoder reads, where it reads tokens: outputs repeat parts of it."""
        state.extend(tokens)

    @abstractmethod
    def draft(self, state: State, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        """Guesses for one sequence; both parts of the budget are at least 1."""

    def begin(self, sequence: SequenceView) -> None:
        self._states[sequence.id] = self.new_state(sequence)
        self._sequences[sequence.id] = sequence
        self._lengths[sequence.id] = 0

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [
            self.draft(self.caught_up(sequence.id), sequence, budget)
            if budget.nodes > 0 and budget.depth > 0
            else DraftTree.empty()
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def caught_up(self, sequence_id: int) -> State:
        """The state of a sequence, which has seen all of its tokens."""
        state, tokens, seen = self._states[sequence_id], self._sequences[sequence_id].tokens, self._lengths[sequence_id]
        if seen < len(tokens):
            source = self._sequences[sequence_id].source
            if not seen and source is not None and source.copyable:
                self.read_source(state, source.copyable)
            state.extend(tokens[seen:] if seen else tokens)
            self._lengths[sequence_id] = len(tokens)
        return state

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        self._states.pop(sequence_id, None)
        self._sequences.pop(sequence_id, None)
        self._lengths.pop(sequence_id, None)
