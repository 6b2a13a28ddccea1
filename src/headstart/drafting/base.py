"""The drafter's contract: what it is given, what it may ask of the target, what it hears back."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.draft_tree import DraftBudget as DraftBudget
from headstart.draft_tree import DraftTree
from headstart.enumerations import VerifyRule
from headstart.errors import RequestError, meant
from headstart.passes import NO_STATES, EncoderInput, TapStates
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
class SpeculationParams:
    """How one request wants to be drafted and verified. None: the engine's or the drafter's own choice."""

    enabled: bool = True
    """False: plain decoding."""
    drafter: str | None = None
    """Which of the engine's drafters guesses, where it has several."""
    draft_tokens: int | None = None
    """Depth of the draft at most."""
    tree_nodes: int | None = None
    """Nodes of the draft at most."""
    verify: VerifyRule = VerifyRule.AUTO
    """COUPLED asks drafters that sample to share the target's noise (Gumbel coupling): their trees are point masses. A
    rule's value ("coupled") stands for it."""
    lenience: float | None = None
    """LOSSY opt-in (paper A.5): a guess x is also accepted where p(x) is smaller than q(x) by up to this factor."""
    typical: float | None = None
    """LOSSY opt-in (Medusa's typical acceptance): every guess stays that the target finds plausible; the epsilon of
    ``verification.typical``, the paper's is 0.09. Greedy requests lose nothing."""
    prediction: str | tuple[int, ...] = ()
    """What the output is expected to resemble, such as a text that is to be edited; changes nothing but the guesses of
    drafters that look up what followed before (``suffix``, and ``auto`` with it). To drafters it is token ids."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise RequestError(f"enabled is {self.enabled!r}; it must be True or False.")
        try:
            object.__setattr__(self, "verify", VerifyRule(self.verify))
        except ValueError:
            known = meant(self.verify, (rule.value for rule in VerifyRule))
            raise RequestError(f"verify is {self.verify!r}; {known}") from None
        for name in ("draft_tokens", "tree_nodes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise RequestError(f"{name} is {value!r}; it must be an integer.")
            if value is not None and value < 0:
                raise RequestError(f"{name} is {value}; it must be 0 (no speculation) or more.")
        for name in ("lenience", "typical"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (int, float)):
                raise RequestError(f"{name} is {value!r}; it must be a number.")
        if not isinstance(self.prediction, str):
            try:
                object.__setattr__(self, "prediction", tuple(map(operator.index, self.prediction)))
            except TypeError:
                raise RequestError(f"prediction is {self.prediction!r:.40}; give a text or token ids.") from None
        if self.lenience is not None and not 0 < self.lenience <= 1:
            raise RequestError(f"lenience is {self.lenience}; it must lie in (0, 1], where 1 is lossless.")
        if self.typical is not None and not 0 < self.typical < 1:
            raise RequestError(f"typical is {self.typical}; it must lie in (0, 1).")
        if self.lenience is not None and self.typical is not None:
            raise RequestError(f"lenience is {self.lenience} and typical {self.typical}; choose one of the two.")

    @property
    def lossy(self) -> str | None:
        """The name of the rule asked for that does not keep the target's law, None for exact ones."""
        if self.typical is not None:
            return "typical"
        return "lenience" if self.lenience is not None and self.lenience < 1 else None

    def lossy_for(self, params: SamplingParams) -> str | None:
        """The same for one request: greedy ones lose nothing by typical acceptance."""
        return None if self.lossy == "typical" and params.greedy else self.lossy


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
        """The taps stay; ``top_ids`` may change with every ``propose``."""
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
