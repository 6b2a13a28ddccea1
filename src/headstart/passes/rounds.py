"""Several rounds of some sequences in one call: the contract between engine, drafters and a backend that can.

Between two passes an interpreter's memory has left the processor's caches, so that everything it does for a round costs
several times as much as it would otherwise. A *stretch* runs rounds without it: draft, pass, accept, again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from headstart.passes.batch import IntArray, KVStorage
from headstart.passes.draft_tree import DraftBudget
from headstart.sampling.kernels import NoiseKey
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.transforms import Transforms

MOST_GUESSERS = 2


class GuesserFault(ValueError):
    """A guesser cannot take part, or failed on the way; what it knew is of no use then."""


@dataclass(slots=True, kw_only=True)
class SpanRecord:
    """What happened to one sequence in a round. Lists by guesser have ``MOST_GUESSERS`` places."""

    asked: bool
    """Whether it had room for guesses; nobody guessed for it otherwise."""
    tokens: list[int]
    """[node] of the tree that was verified."""
    parents: list[int]
    """[node] as in ``DraftTree``."""
    grades: list[int]
    """[node] likewise; without meaning under a ``CutRule``."""
    path: list[int]
    """Accepted nodes, from the first level down."""
    token: int
    """The target's own after them."""
    gains: list[float]
    """[guesser] tokens that the round was expected to bring more than with the guessers before it alone,"""
    verified: list[int]
    """[guesser] and nodes that were verified more."""
    judged: list[int]
    """[guesser] how many of its ``judgements`` are this round's."""
    chances: list[float] = field(default_factory=list)
    """[node] as in ``DraftTree``; empty: the drafter says none."""

    @property
    def said(self) -> int:
        """Tokens of the target."""
        return len(self.path) + 1


@dataclass(slots=True, kw_only=True)
class RoundRecord:
    """What happened in a round of a stretch. Times are seconds."""

    spans: list[SpanRecord]
    """[sequence]."""
    draft_seconds: list[float]
    """[guesser] of all sequences; 0 where nobody was asked."""
    pass_seconds: float
    walk_seconds: float
    """Of finding what the target says after its rows."""
    read_seconds: float
    """Of showing a head what was said."""
    other_seconds: float
    row_seconds: float
    """For each of the trees' nodes; 0 without a ``CutRule``."""
    experts: float | None = None
    """As in ``PassOutput``."""
    riders: int = 0
    """Rows of the pass besides those of ``spans``."""

    @property
    def nodes(self) -> int:
        """That were verified."""
        return sum([len(span.tokens) for span in self.spans])

    @property
    def rows(self) -> int:
        """Of the pass."""
        return self.riders + len(self.spans) + self.nodes

    def among(self, places: Sequence[int]) -> RoundRecord:
        """What happened to some of the sequences; nobody guessed for the others."""
        spans = [self.spans[place] for place in places]
        return replace(self, spans=spans, riders=self.riders + len(self.spans) - len(spans))


@dataclass(frozen=True)
class Judgement:
    """A guess that was judged by what the target said."""

    grade: int
    holds: bool


@dataclass
class Guesser:
    """A drafter at work in a stretch, for one sequence."""

    compiled: object
    """What guesses, made by the backend: a text index, or what grows a head's trees."""
    finish: Callable[[], None]
    """Brings the drafter up to date, once the sequence holds what was said."""
    taps: tuple[int, ...] = ()
    """States that it reads, see ``PassBatch.taps``; one guesser at most reads any."""
    rates: Sequence[float] = ()
    """[grade] how often its guesses hold; needed under a ``CutRule``."""
    judgements: list[Judgement] = field(default_factory=list)
    """After the stretch: its guesses that were judged, in order."""


@dataclass(frozen=True)
class CutRule:
    """What decides how many guesses are verified, over all sequences: as many as make the most tokens per second; and
    when a stretch ends because guesses have not paid."""

    pass_seconds: Sequence[float]
    """[guesses] of a pass that verifies so many, from 0 on."""
    other_seconds: float
    """Of the rest of a round."""
    plain_seconds: float
    """Of a plain round."""
    allowance: float
    """Seconds that may be lost, set against plain rounds that say the same. The stretch ends, after two rounds at the
    earliest, with the round in which they are."""
    least_gain: float = 1.0
    """Times plain decoding's speed that guesses must promise."""
    most_certain: float = 1.0
    """No guess's chance is taken to be higher."""


@dataclass(frozen=True)
class StretchDrafting:
    """What drafting brings to a stretch."""

    guessers: Sequence[Sequence[Guesser | None]] = ()
    """[sequence][drafter] at most ``MOST_GUESSERS`` drafters; without a cut rule at most one, all of whose guesses are
    verified. Empty: nobody guesses."""
    cut_rule: CutRule | None = None
    learn: Callable[[Sequence[RoundRecord]], None] = lambda rounds: None
    """Is shown the rounds that count, after the guessers' ``finish``."""

    def among(self, places: Sequence[int], sequences: int) -> StretchDrafting:
        """The same for those in some places of so many; nobody guesses for the others."""
        guessers: list[Sequence[Guesser | None]] = [()] * sequences
        for place, own in zip(places, self.guessers, strict=False):  # there are none where nobody guesses
            guessers[place] = own

        def learn(rounds: Sequence[RoundRecord]) -> None:
            self.learn([done.among(places) for done in rounds])

        return replace(self, guessers=guessers, learn=learn)


@dataclass(frozen=True)
class Sampling:
    """How a sequence draws its tokens where logits become a law by these alone (``Transforms.sample``)."""

    temperature: float
    min_p: float
    """0: it is not asked for."""
    top_p: float
    """1: it is not asked for."""
    top_k: int
    """0: it is not asked for."""
    noise: NoiseKey
    """Of the draws at position 0, whose place in the counter is its first word."""

    @classmethod
    def of(cls, transforms: Transforms, noise: SequenceNoise) -> Sampling | None:
        """How tokens are drawn of a law that temperature, top-k, top-p and min-p alone make; None where the best one
        is said."""
        if transforms.greedy:
            return None
        params = transforms.params
        top_k = params.top_k if params.top_k < transforms.vocab_size else 0
        return cls(params.temperature, params.min_p, params.top_p, max(top_k, 0), noise.coupled_key)


@dataclass(frozen=True)
class StretchLimits:
    """When a stretch ends, at the latest, and what a drafter may do in it for one of its sequences."""

    rounds: int
    seconds: float
    tokens: int
    """Said by the target."""
    room: int
    """Tokens that the context holds behind the root."""
    end_tokens: frozenset[int]
    budget: DraftBudget
    """Of each round."""
    guesses: bool = True
    """False for a drafter that only follows what is said."""
    sampling: Sampling | None = None
    """None: the best token is said."""
    riders: int = 0
    """As in ``RoundRecord``, of sequences that the drafter does not know of."""

    @property
    def rows(self) -> int:
        """Rows that may be written behind the cached tokens."""
        return min(self.rounds * (1 + self.budget.depth) + self.budget.nodes, 1 + self.room)

    @property
    def states(self) -> int:
        """Slots of states that its rows need, where the model keeps any: one for each row of a round, and one after
        every round."""
        return self.rounds + self.budget.nodes + 1


@dataclass
class StretchStates:
    """Slots of states of a stretch's sequences."""

    before: Sequence[int]
    """[sequence] that of the state after its cached tokens."""
    free: Sequence[Sequence[int]]
    """[sequence] those that its rows may take, at least ``StretchLimits.states``."""
    after: Sequence[Sequence[int]] = ()
    """[sequence][row] after the stretch: that of the state after a row, -1: none is kept. After the last row of every
    round, and every row of the last round, there is one."""


class Stretches(Protocol):
    """Runs stretches of one model."""

    def run(
        self,
        storage: KVStorage,
        block_tables: IntArray,
        cached: Sequence[int],
        roots: Sequence[int],
        limits: Sequence[StretchLimits],
        drafting: StretchDrafting,
        memories: tuple[IntArray, IntArray] | None = None,
        states: StretchStates | None = None,
        adapters: Sequence[object | None] | None = None,
    ) -> list[RoundRecord]:
        """Rounds of the sequences whose tokens are in these blocks, each with its root after them.

        All take part in every round; the stretch ends with the round that ends one of them. Accepted rows stand behind
        the cached ones, in order, those of the root included. A round in which a row has no best token, or a draw
        cannot be told in short, is not among the rounds; there the stretch ends.

        Args:
            block_tables: int32 [sequence, block], with room for ``limits.rows``.
            cached, roots, limits: [sequence] tokens in the cache, the one after them, and its limits.
            memories: lengths and tables of the encoder memories that they read, as in ``PassBatch``.
            states: where the model keeps any; their ``after`` is set.
            adapters: of the target's passes, as in ``PassBatch``.

        Raises:
            GuesserFault: a guesser failed; no round counts.
            ValueError: the tables contradict each other or the cache.
        """
        ...
