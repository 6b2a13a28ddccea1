"""The drafter's contract: what it is given, what it may ask of the target, what it hears back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.speculation import SpeculationParams as SpeculationParams
from headstart.passes.batch import NO_STATES, EncoderInput, TapStates
from headstart.passes.draft_tree import DraftBudget as DraftBudget
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams


class SequenceView(Protocol):
    """What a drafter sees of a sequence. ``tokens`` grows in place; a drafter never changes anything here."""

    id: int
    tokens: list[int]
    """Prompt and committed tokens. The last one is the root: it is not in the target's cache yet."""
    prompt_length: int
    params: SamplingParams
    speculation: SpeculationParams
    noise: SequenceNoise
    """Counter-based randomness of this sequence (its seed and sample index)."""
    source: EncoderInput | None
    """What the target's encoder reads for it; None: the target has none."""


@dataclass(frozen=True)
class BeamView:
    """What a drafter may know of a beam, beyond what it sees of every sequence (its attribute ``beam``)."""

    group: int
    """Beams of one search have the same, which no other search of the engine has."""
    width: int
    """Beams that are searched."""
    score: float
    """The beam's log-probability so far, after the request's transforms."""
    end_tokens: frozenset[int] = frozenset()
    """Paths end with these: nothing is ever read after them."""


def beam_of(sequence: SequenceView) -> BeamView | None:
    """What is known of a beam; None: the sequence is none."""
    beam: BeamView | None = getattr(sequence, "beam", None)
    return beam


@dataclass(frozen=True)
class TargetSignals:
    """What a drafter needs from the target's passes; the engine asks for no more than that."""

    taps: tuple[int, ...] = ()
    """Layers whose input is wanted for every row that is computed, prompt rows too (``passes.PassBatch.taps``);
    a prefix found in the cache brings none."""
    top_ids: int = 0
    """How many best token ids are wanted for every row of a verification pass, probe rows included."""


@dataclass(frozen=True)
class RoundOutcome:
    """What happened to one sequence in one pass: a prompt chunk was read, or a draft tree was verified.

    ``row`` counts this sequence's rows in the pass. In a round, row 0 is the root and row i + 1 is node i of
    ``draft``; in a prompt chunk rows are consecutive prompt tokens.
    """

    sequence: SequenceView
    """Already holds the committed tokens."""
    first_position: int
    """Position of row 0 (= tokens in the target's cache before the pass)."""
    row_tokens: NDArray[np.int32]
    """[row] tokens the target read."""
    draft: DraftTree
    accepted: tuple[int, ...] = ()
    """Nodes whose tokens were committed, from the first level down."""
    committed: tuple[int, ...] = ()
    """Tokens committed in this round: accepted ones, then the correction or bonus. Empty for a prompt chunk."""
    top_ids: NDArray[np.int64] | None = None
    """[row, k] best target token ids after each row, best first; None in prompt chunks or where not needed."""
    hidden: TapStates = NO_STATES
    """Of its rows."""
    pass_rows: int = 0
    """Rows of the whole pass, over all its sequences; 0: not known."""
    pass_seconds: float = 0.0
    """Wall time of the pass."""
    signal_seconds: float = 0.0
    """Wall time of finding ``top_ids`` in the whole pass."""
    ahead_seconds: float = 0.0
    """Wall time of the engine's step before anybody was asked to guess."""
    pass_experts: float | None = None
    """Distinct experts that the whole pass called, as in ``PassOutput.experts``."""

    @property
    def kept_rows(self) -> list[int]:
        """Rows that stay in the target's cache, in order: the whole chunk, or the root and the accepted nodes."""
        if not self.committed:
            return list(range(len(self.row_tokens)))
        return [0, *(node + 1 for node in self.accepted)]


class Drafter(Protocol):
    """Guesses what the target will say. The registry gives it its name.

    One drafter object serves every sequence of an engine; calls come from one thread. After ``observe`` its own
    cache, if it has one, holds no more tokens of a sequence than the target's does. What some drafters can do besides
    stands in ``drafting.abilities``.
    """

    @property
    def needs(self) -> TargetSignals:
        """Of the next pass: they may change when a sequence begins or ends, and with every ``propose``."""
        ...

    def begin(self, sequence: SequenceView) -> None:
        """A sequence was admitted; ``tokens`` holds its prompt."""
        ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """One tree for each sequence, within its budget. The empty tree is always a right answer."""
        ...

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        """Learn from a pass: truncate own caches, take hidden states, count n-grams."""
        ...

    def end(self, sequence_id: int) -> None:
        """The sequence is finished, aborted or preempted; forget it. Unknown ids are ignored."""
        ...
