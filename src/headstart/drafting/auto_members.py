"""What asking each of several drafters costs and brings, by sequence: who is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.drafting.base import Drafter
from headstart.drafting.context import ScopedMemory
from headstart.drafting.guess_rates import GuessRates, first_rates
from headstart.drafting.pass_costs import QuestionCosts, Recent

_SHARED_MEMORY = 1000.0
OWN_WEIGHT, OWN_MEMORY = 4.0, 40.0
_STEADY, _PROBE, _USUAL = 1 / 16, 1 / 2, 1 / 64
"""Weight of the latest round in a standing: of a drafter that is always asked, of one that rests, and over all
sequences. Worth differs much from round to round: a head brings four tokens, then none."""
_MOST = 24.0
"""What a round is worth at most, in costs: one great success must not pay for a hundred failures. A drafter that costs
little is rarely right and then saves much: at 8, batches of 4 gained 2.5 % instead of 6 %."""
_USUAL_ROUNDS = 6
"""Rounds of its own that outweigh, for a sequence, what a drafter is usually worth."""
_FIRST_ROUNDS = 6
"""For which nobody rests: what guesses of each grade are worth shows only then, and the first questions take longer,
since there may be a prompt to learn."""
_USUAL_KNOWN = 64
"""Rounds after which new sequences may rest from the beginning. Answers begin with what nobody can guess from the
text, so that a few rounds of a few answers say too little."""
_PROBE_SHARE = 1 / 200
"""Share of the time that goes into asking a resting drafter again."""
_ANSWER = 64
"""Rounds over which the first question about a sequence, for which its prompt is read, is paid for: a short answer."""


@dataclass(slots=True)
class Standing:
    """What one drafter lately brought to one sequence, in rounds in which it was asked."""

    worth: float = 0.0
    """Seconds a round that its guesses saved, those that no drafter cheaper than it made, less those of their rows."""
    rounds: int = 0
    """Judged; 0: ``worth`` says nothing yet."""
    size: int = 0
    """Of the batches in which it was judged, as in ``Member.usual``: among fewer sequences a guess is worth more."""
    asked: bool = False
    """Whether the drafter has read the sequence's prompt."""

    def update(self, worth: float, weight: float, begun: int = 0) -> None:
        """One more round, which counts for so much of the past; the first few evenly, beside ``begun`` others that the
        standing began with."""
        self.rounds += 1
        self.worth += (worth - self.worth) * max(weight, 1 / (begun + self.rounds))


@dataclass(eq=False)
class Member:
    """One of the drafters."""

    drafter: Drafter
    bit: int
    """Marks the guesses that are its own."""
    rates: ScopedMemory[GuessRates] = field(init=False)
    cost: QuestionCosts = field(default_factory=QuestionCosts)
    """Seconds to ask it, with what it has the target's pass do for it."""
    first_cost: Recent = field(default_factory=Recent)
    """Seconds to ask it for a sequence for the first time."""
    probes: int = 0
    """So far."""
    debt: float = 0.0
    """Seconds of its last probes that are not paid for yet."""
    _usual: dict[int, Standing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rates = ScopedMemory(lambda: first_rates(self.drafter, _SHARED_MEMORY))

    def usual(self, roots: int) -> Standing:
        """Over all sequences of batches of about this size: what it is worth to new ones, until they know better."""
        return self._usual.setdefault(_size(roots), Standing())

    @property
    def probe_is_due(self) -> bool:
        """Whether the last probe is paid for, by a small share of the time since."""
        return self.debt <= 0.0

    def seconds(self, sequences: int) -> float:
        """To ask it for so many; 0: never asked."""
        return self.cost.seconds(sequences) + sequences * self.first_cost.value / _ANSWER

    def rests(self, standing: Standing, roots: int) -> bool:
        """Whether it is not asked for a sequence, unless to see if that is still right: what it brings is less than the
        sequence's part of a question about the whole batch."""
        enough = _FIRST_ROUNDS if _is_judged(standing, roots) else _USUAL_KNOWN
        return self.usual(roots).rounds >= enough and self._worth(standing, roots) < self.seconds(roots) / roots

    def loses(self, asked: Sequence[Standing], roots: int) -> bool:
        """Whether it is not worth its time for all of these together, none of which rests."""
        worth = sum([self._worth(standing, roots) for standing in asked])
        return self.usual(roots).rounds >= _USUAL_KNOWN and worth < self.seconds(len(asked))

    def rested(self, probe_seconds: float, round_seconds: float) -> None:
        """In a round it rested for some sequences; to be asked for one of them nevertheless took so long."""
        self.debt = max(self.debt + probe_seconds - _PROBE_SHARE * round_seconds, 0.0)

    def judge(self, standing: Standing, worth: float, roots: int) -> None:
        """A sequence for which it was asked has its tree; what its guesses are worth is in seconds."""
        worth, usual = min(worth, _MOST * self.seconds(roots) / roots), self.usual(roots)
        rested = _is_judged(standing, roots) and self.rests(standing, roots)
        if not _is_judged(standing, roots):
            standing.worth, standing.rounds, standing.size = usual.worth, 0, _size(roots)
        standing.update(worth, _PROBE if rested else _STEADY, _USUAL_ROUNDS if usual.rounds else 0)
        usual.update(worth, _USUAL)
        if self.rests(standing, roots) and not rested:
            self.debt = max(self.debt, self.seconds(1))

    def _worth(self, standing: Standing, roots: int) -> float:
        return standing.worth if _is_judged(standing, roots) else self.usual(roots).worth


def _size(roots: int) -> int:
    return roots.bit_length()


def _is_judged(standing: Standing, roots: int) -> bool:
    return standing.rounds > 0 and standing.size == _size(roots)


def credits_of(members: Sequence[Member]) -> list[int]:
    """[bits of who guessed a node] the place of the member whose merit it is: the cheapest of them."""
    by_cost = sorted(range(len(members)), key=lambda place: members[place].seconds(1))
    merits = [-1] * (1 << len(members))
    for bits in range(1, len(merits)):
        merits[bits] = next(place for place in by_cost if bits & members[place].bit)
    return merits
