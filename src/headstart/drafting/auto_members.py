"""What asking each of several drafters costs and brings, by sequence: who is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.drafting.base import Drafter
from headstart.drafting.context import ScopedMemory
from headstart.drafting.guess_rates import GuessRates, first_rates

_SHARED_WEIGHT, _SHARED_MEMORY = 8.0, 1000.0
OWN_WEIGHT, OWN_MEMORY = 4.0, 40.0
_STEADY, _PROBE = 1 / 8, 1 / 2
"""Weight of the latest round in a standing: of a drafter that is always asked, and of one that rests."""
_PROBE_SHARE = 0.005
"""Share of the time that goes into asking a resting drafter again."""


@dataclass(slots=True)
class Standing:
    """What one drafter lately brought to one sequence, in rounds in which it was asked."""

    gain: float = 0.0
    """Expected tokens a round that no drafter cheaper than it brought."""
    rows: float = 0.0
    """Rows that these took."""
    rests: bool = False

    def update(self, gain: float, rows: int, weight: float) -> None:
        """One more round."""
        self.gain += (gain - self.gain) * weight
        self.rows += (rows - self.rows) * weight


@dataclass(eq=False)
class Member:
    """One of the drafters."""

    drafter: Drafter
    bit: int
    """Marks the guesses that are its own."""
    rates: ScopedMemory[GuessRates] = field(init=False)
    seconds: float = 0.0
    """To ask it for one sequence, with what it has the target's pass do for it; 0: never asked."""
    usual: Standing = field(default_factory=Standing)
    """Where new sequences begin."""
    allowance: float = 0.0
    """Seconds that may be spent on probes."""

    def __post_init__(self) -> None:
        self.rates = ScopedMemory(lambda: GuessRates(first_rates(self.drafter), _SHARED_WEIGHT, _SHARED_MEMORY))

    @property
    def probe_is_due(self) -> bool:
        return self.allowance >= 0.0

    def timed(self, seconds: float, sequences: int) -> None:
        """It was asked for so many sequences."""
        each = seconds / sequences
        self.seconds += (each - self.seconds) * (_STEADY if self.seconds else 1.0)

    def judge(self, standing: Standing, gain: float, rows: int, per_token: float, per_row: float) -> None:
        """A sequence for which it was asked has its tree; what a token is worth and a row costs is in seconds."""
        standing.update(gain, rows, _PROBE if standing.rests else _STEADY)
        self.usual.update(gain, rows, _STEADY)
        standing.rests = self._loses(standing, per_token, per_row)
        self.usual.rests = self._loses(self.usual, per_token, per_row)

    def _loses(self, standing: Standing, per_token: float, per_row: float) -> bool:
        return standing.gain * per_token - standing.rows * per_row < self.seconds

    def newcomer(self) -> Standing:
        """The standing of a sequence for which it was never asked."""
        return Standing(self.usual.gain, self.usual.rows, self.usual.rests)

    def save_up(self, seconds: float) -> None:
        """A round passed in which it rested for some sequence: the debt of its last probe shrinks."""
        self.allowance = min(self.allowance + _PROBE_SHARE * seconds, 0.0)


def credits_of(members: Sequence[Member]) -> list[int]:
    """[bits of who guessed a node] the place of the member whose merit it is: the cheapest of them."""
    by_cost = sorted(range(len(members)), key=lambda place: members[place].seconds)
    merits = [-1] * (1 << len(members))
    for bits in range(1, len(merits)):
        merits[bits] = next(place for place in by_cost if bits & members[place].bit)
    return merits
