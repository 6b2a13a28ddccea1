"""What asking each of several drafters costs and brings for each sequence, which decides who is asked next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from headstart.drafting.base import Drafter
from headstart.drafting.context import ScopedMemory
from headstart.drafting.planning.guess_rates import GuessRates, first_rates
from headstart.drafting.planning.learned_acceptance import LearnedAcceptance
from headstart.drafting.planning.pass_costs import QuestionCosts, Recent

_SHARED_MEMORY = 1000.0
OWN_WEIGHT, OWN_MEMORY = 4.0, 40.0
_STEADY, _PROBE, _USUAL = 1 / 16, 1 / 2, 1 / 64
"""Weight of the latest round in a standing: of a drafter that is always asked, of one that rests, and over all
sequences. Worth varies a lot from round to round: a head brings four tokens, then none."""
_MOST = 24.0
"""Most that a round is worth, as a multiple of its cost: one great success must not pay for a hundred failures. A cheap
drafter is rarely right but then saves much: with 8, batches of 4 gained 2.5 % instead of 6 %."""
_USUAL_ROUNDS = 6
"""Rounds after which a sequence's own experience outweighs what a drafter is usually worth."""
_FIRST_ROUNDS = 6
"""Rounds before a drafter may rest: only they show what guesses of each grade are worth, and the first questions take
longer, because there may be a prompt to learn."""
_USUAL_KNOWN = 64
"""Rounds after which a drafter may rest for new sequences from the beginning. Answers begin with what cannot be guessed
from the text, so a few rounds of a few answers say too little."""
_PROBE_SHARE = 1 / 50
"""Share of the time that is spent on asking resting drafters again. One that rests by mistake costs much more: a
head a third of the speed."""
_ANSWER = 64
"""Rounds over which the cost of the first question, for which the prompt is read, is spread: a short answer."""
_MANY, _TRIED = 4, 8
"""Sequences of a batch from which on a drafter that reads along follows one of so many that begin there, if it usually
does not pay: enough to see whether that is still right. In smaller batches it may soon pay again, in the same text."""


@dataclass(slots=True)
class Standing:
    """What one drafter lately brought to one sequence, in rounds in which it was asked."""

    worth: float = 0.0
    """Seconds that its guesses saved in a round, less those of their rows; only guesses beyond cheaper drafters'."""
    rounds: int = 0
    """Rounds in which it was judged; 0: ``worth`` says nothing yet."""
    size: int = 0
    """Size of the batches in which it was judged, as in ``Member.usual``: in smaller batches a guess is worth more."""
    asked: bool = False
    """Whether the drafter has read the sequence's prompt."""

    def update(self, worth: float, weight: float, begun: int = 0, rounds: int = 1) -> None:
        """Add some rounds, worth so much on average, with this weight. The first few count evenly, along with ``begun``
        rounds that the standing started with."""
        self.rounds += rounds
        self.worth += (worth - self.worth) * max(weight, rounds / (begun + self.rounds))


@dataclass(eq=False)
class Member:
    """One of the drafters."""

    drafter: Drafter
    bit: int
    """Marks its own guesses."""
    rates: ScopedMemory[GuessRates] = field(init=False)
    learned: ScopedMemory[LearnedAcceptance] = field(default_factory=lambda: ScopedMemory(LearnedAcceptance))
    cost: QuestionCosts = field(default_factory=QuestionCosts)
    """Seconds to ask it, including the extra work that it asks of the target's pass."""
    first_cost: Recent = field(default_factory=Recent)
    """Seconds to ask it about a sequence for the first time."""
    probes: int = 0
    """Probes so far."""
    debt: float = 0.0
    """Seconds of its last probes that are not paid for yet."""
    _passed_over: int = 0
    """Sequences that began where it does not pay."""
    _usual: dict[int, Standing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rates = ScopedMemory(lambda: first_rates(self.drafter, _SHARED_MEMORY))

    def own_rates(self, scope: Hashable) -> GuessRates:
        """Rates of a sequence that begins: they start from those of its ``scope``."""
        return GuessRates(self.rates[scope], OWN_WEIGHT, OWN_MEMORY)

    def usual(self, roots: int) -> Standing:
        """Its standing over all sequences of batches of about this size, from which new sequences start."""
        size = _size(roots)
        if size not in self._usual:
            self._usual[size] = Standing()
        return self._usual[size]

    @property
    def probe_is_due(self) -> bool:
        """Whether a small share of the time since the last probe has paid for it."""
        return self.debt <= 0.0

    def seconds(self, sequences: int) -> float:
        """Expected seconds to ask it about this many sequences; 0: it was never asked."""
        return self.cost.seconds(sequences) + sequences * self.first_cost.value / _ANSWER

    @property
    def reads_along(self) -> bool:
        """Whether it is shown the target's states, which takes time for every sequence, asked about or not."""
        return bool(self.drafter.needs.taps)

    def follows(self, before: bool | None, roots: int) -> bool:
        """Whether it reads along with a sequence, in a batch of so many.

        It does, unless these are many and it usually does not pay among them. Then only if it did ``before`` (None: the
        sequence begins), since a gap in what it has read costs guesses later.
        """
        if before or roots < _MANY or not self.reads_along or not self.rests(Standing(), roots):
            return True
        if before is None:
            self._passed_over += 1
        return before is None and self._passed_over % _TRIED == 0

    def rests(self, standing: Standing, roots: int) -> bool:
        """Whether it is asked about a sequence only as a probe, because it brings less than the sequence's share of the
        cost of asking about the whole batch."""
        enough = _FIRST_ROUNDS if _is_judged(standing, roots) else _USUAL_KNOWN
        return self.usual(roots).rounds >= enough and self._worth(standing, roots) < self.seconds(roots) / roots

    def loses(self, asked: Sequence[Standing], roots: int) -> bool:
        """Whether it is not worth its time for all of these sequences together, though it rests for none of them."""
        worth = sum([self._worth(standing, roots) for standing in asked])
        return self.usual(roots).rounds >= _USUAL_KNOWN and worth < self.seconds(len(asked))

    def rested(self, probe_seconds: float, round_seconds: float, timed: bool = True) -> None:
        """A round in which it rested for some sequences is over; a probe in it took ``probe_seconds`` (0: none),
        ``timed`` by itself or estimated."""
        if probe_seconds and timed:
            self.cost.add_probe(1, probe_seconds)
        self.debt = max(self.debt + probe_seconds - _PROBE_SHARE * round_seconds, 0.0)

    def judge(self, standing: Standing, worth: float, roots: int, steady: bool = False, rounds: int = 1) -> None:
        """Learn what its guesses in a sequence's trees are worth, in seconds, the mean of some ``rounds``; ``steady``:
        it was asked whatever it was worth before."""
        worth, usual = min(worth, _MOST * self.seconds(roots) / roots), self.usual(roots)
        rested = not steady and _is_judged(standing, roots) and self.rests(standing, roots)
        if not _is_judged(standing, roots):
            standing.worth, standing.rounds, standing.size = usual.worth, 0, _size(roots)
        standing.update(worth, _PROBE if rested else _STEADY, _USUAL_ROUNDS if usual.rounds else 0)
        usual.update(worth, rounds * _USUAL, rounds=rounds)
        if self.rests(standing, roots) and not rested:
            self.debt = max(self.debt, self.seconds(1))

    def _worth(self, standing: Standing, roots: int) -> float:
        return standing.worth if _is_judged(standing, roots) else self.usual(roots).worth


def _size(roots: int) -> int:
    return roots.bit_length()


def _is_judged(standing: Standing, roots: int) -> bool:
    return standing.rounds > 0 and standing.size == _size(roots)


def credits_of(members: Sequence[Member]) -> list[int]:
    """[bits of the places of the members that guessed a node] place of the cheapest of them, which gets the credit."""
    by_cost = sorted(range(len(members)), key=lambda place: members[place].seconds(1))
    merits = [-1] * (1 << len(members))
    for bits in range(1, len(merits)):
        merits[bits] = next(place for place in by_cost if bits >> place & 1)
    return merits
