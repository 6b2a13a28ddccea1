"""Watching a drafter at work, in rounds one by one and in rounds that are run at once alike."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headstart.drafting.abilities import bytes_of, fork_or_begin, stretch_drafting
from headstart.drafting.base import (
    DraftBudget,
    Drafter,
    RoundOutcome,
    SequenceView,
    TargetSignals,
)
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import RoundRecord, SpanRecord, StretchDrafting, StretchLimits


@dataclass(frozen=True)
class WatchedRound:
    """What became of a drafter's guesses in one pass."""

    outcomes: Sequence[RoundOutcome]
    """[sequence] of prompt chunks, too. Those of rounds that are run at once lack the target's states and best ids."""
    draft_seconds: float
    """Of asking the drafter about all of its sequences; 0 where it was not asked."""
    at_once: bool = False
    """Whether it was one of several rounds in one call."""


class DrafterWrapper(ABC):
    """Hands everything on to a drafter, and shows what became of its guesses to ``watch``."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._draft_seconds = 0.0

    @abstractmethod
    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        """The drafter has heard of a pass, or of all the rounds of a stretch."""

    @property
    def needs(self) -> TargetSignals:
        return self.drafter.needs

    @property
    def nbytes(self) -> int:
        return bytes_of(self.drafter)

    def begin(self, sequence: SequenceView) -> None:
        self.drafter.begin(sequence)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        fork_or_begin(self.drafter, source, sequence)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        start = time.perf_counter()
        trees = self.drafter.propose(sequences, budgets)
        self._draft_seconds = time.perf_counter() - start
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self.drafter.observe(outcomes)
        seconds, self._draft_seconds = self._draft_seconds, 0.0
        self.watch([WatchedRound(outcomes, seconds)])

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        drafting = stretch_drafting(self.drafter, sequences, limits)
        if drafting is None:
            return None
        roots = [len(sequence.tokens) - 1 for sequence in sequences]

        def learn(rounds: Sequence[RoundRecord]) -> None:
            drafting.learn(rounds)
            self.watch(watched_rounds(sequences, roots, rounds, graded=drafting.cut_rule is None))

        return replace(drafting, learn=learn)

    def end(self, sequence_id: int) -> None:
        self.drafter.end(sequence_id)


def watched_rounds(
    sequences: Sequence[SequenceView], roots: Sequence[int], rounds: Sequence[RoundRecord], graded: bool
) -> list[WatchedRound]:
    """Rounds that were run at once, as each would have been observed.

    Args:
        sequences: hold the committed tokens, of which the last round may have said more.
        roots: [sequence] position of its root in the first round.
        graded: whether grades mean anything (not under a cut rule).
    """
    positions = list(roots)
    watched = []
    for done in rounds:
        outcomes = []
        rows = done.nodes + len(done.spans)
        for i, (sequence, span) in enumerate(zip(sequences, done.spans, strict=True)):
            outcome = _outcome(sequence, positions[i], span, graded)
            timed = replace(outcome, pass_rows=rows, pass_seconds=done.pass_seconds, pass_experts=done.experts)
            outcomes.append(timed)
            positions[i] += len(outcome.committed)
        watched.append(WatchedRound(outcomes, sum(done.draft_seconds), at_once=True))
    return watched


def _outcome(sequence: SequenceView, root: int, span: SpanRecord, graded: bool) -> RoundOutcome:
    tokens, parents, grades = (np.array(each, np.int32) for each in (span.tokens, span.parents, span.grades))
    committed = tuple(sequence.tokens[root + 1 : root + 1 + span.said])
    return RoundOutcome(
        sequence=sequence,
        first_position=root,
        row_tokens=np.append(np.int32(sequence.tokens[root]), tokens),
        draft=DraftTree(
            tokens,
            parents,
            grades=grades if graded and span.tokens else None,
            chances=np.array(span.chances) if span.chances else None,
        ),
        accepted=tuple(span.path[: len(committed) - 1]),
        committed=committed,
    )
