"""What asking each of several drafters costs and brings, by sequence: who is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.drafting.base import Drafter
from headstart.drafting.context import ScopedMemory
from headstart.drafting.guess_rates import GuessRates, first_rates
from headstart.drafting.pass_costs import Recent

_SHARED_MEMORY = 1000.0
OWN_WEIGHT, OWN_MEMORY = 4.0, 40.0
_STEADY, _PROBE, _USUAL = 1 / 16, 1 / 2, 1 / 64
"""Weight of the latest round in a standing: of a drafter that is always asked, of one that rests, and over all
sequences. Worth differs much from round to round: a head brings four tokens, then none."""
_MOST = 8.0
"""What a round is worth at most, in costs: one great success must not pay for a hundred failures."""
_USUAL_ROUNDS = 6
"""Rounds of its own that outweigh, for a sequence, what a drafter is usually worth."""
_FIRST_ROUNDS = 6
"""For which nobody rests: what guesses of each grade are worth shows only then, and the first questions take longer,
since there may be a prompt to learn."""
_PROBE_SHARE = 0.01
"""Share of the time that goes into asking a resting drafter again."""


@dataclass(slots=True)
class Standing:
    """What one drafter lately brought to one sequence, in rounds in which it was asked."""

    worth: float = 0.0
    """Seconds a round that its guesses saved, those that no drafter cheaper than it made, less those of their rows."""
    rests: bool = False
    rounds: int = 0
    """Seen; 0: the drafter was never asked, and ``rests`` says nothing."""

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
    cost: Recent = field(default_factory=Recent)
    """Seconds to ask it for one sequence, with what it has the target's pass do for it."""
    usual: Standing = field(default_factory=Standing)
    """Over all sequences: what it is worth to new ones, until they know better."""
    probes: int = 0
    """So far."""
    debt: float = 0.0
    """Seconds of its last probe that are not paid for yet."""

    def __post_init__(self) -> None:
        self.rates = ScopedMemory(lambda: first_rates(self.drafter, _SHARED_MEMORY))

    @property
    def probe_is_due(self) -> bool:
        """Whether the last probe is paid for, by a small share of the time since."""
        return self.debt <= 0.0

    @property
    def seconds(self) -> float:
        """To ask it for one sequence, with what it has the target's pass do for it; 0: never asked."""
        return self.cost.value

    def rested(self, probed: bool, round_seconds: float) -> None:
        """In a round it rested for some sequences, and was asked for one of them nevertheless."""
        self.probes += probed
        self.debt = max(self.debt + probed * self.seconds - _PROBE_SHARE * round_seconds, 0.0)

    def judge(self, standing: Standing, worth: float) -> None:
        """A sequence for which it was asked has its tree; what its guesses are worth is in seconds."""
        worth = min(worth, _MOST * self.seconds)
        if not standing.rounds and self.usual.rounds:
            standing.worth = self.usual.worth
        standing.update(worth, _PROBE if standing.rests else _STEADY, _USUAL_ROUNDS if self.usual.rounds else 0)
        self.usual.update(worth, _USUAL)
        rested = standing.rests
        standing.rests = self._loses(standing)
        if standing.rests and not rested:
            self.debt = max(self.debt, self.seconds)

    def _loses(self, standing: Standing) -> bool:
        return self.usual.rounds >= _FIRST_ROUNDS and standing.worth < self.seconds


def credits_of(members: Sequence[Member]) -> list[int]:
    """[bits of who guessed a node] the place of the member whose merit it is: the cheapest of them."""
    by_cost = sorted(range(len(members)), key=lambda place: members[place].seconds)
    merits = [-1] * (1 << len(members))
    for bits in range(1, len(merits)):
        merits[bits] = next(place for place in by_cost if bits & members[place].bit)
    return merits
