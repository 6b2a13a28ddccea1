"""How often guesses hold, by the drafter's own classes of confidence and by what other drafters say in their place."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.abilities import Graded
from headstart.drafting.base import Drafter
from headstart.drafting.planning import constants as c
from headstart.passes.draft_tree import MAX_GRADES

AGREED, CONTRADICTED = MAX_GRADES, 2 * MAX_GRADES
"""Added to a guess's grade where another drafter guesses the same token after the same ones; where others only do. The
grade itself says how often such guesses hold whatever others say."""


class GuessRates:
    """How often a drafter's guesses were accepted, given that those above them were, by grade.

    Grades are the drafter's own, with ``AGREED`` or ``CONTRADICTED`` added where they apply. A guess counts only where
    its parent was on the target's path: acceptance is censored beyond the first rejection.

    Args:
        first: [grade] where the rates start from.
        weight: how many trials those are worth.
        memory: trials after which a grade's past counts half; None: ``constants.MEMORY``.
    """

    __slots__ = ("_first", "_hits", "_memory", "_trials", "_weight", "rates")

    def __init__(self, first: Sequence[float], weight: float, memory: float | None = None) -> None:
        self._first, self._weight = first, weight
        self._memory = c.MEMORY if memory is None else memory
        self.rates: list[float] = list(first)
        """[grade] the chance of a guess to be accepted, given its parent."""
        self._hits = [0.0] * len(first)
        self._trials = [0.0] * len(first)

    def count(self, grade: int, accepted: bool) -> None:
        """One guess was judged."""
        if grade >= MAX_GRADES:
            self.count(grade % MAX_GRADES, accepted)
        self._hits[grade] = hits = self._hits[grade] + accepted
        self._trials[grade] = trials = self._trials[grade] + 1.0
        self.rates[grade] = (hits + self._weight * self._first[grade]) / (trials + self._weight)
        if trials > self._memory:
            self._hits[grade] /= 2
            self._trials[grade] /= 2


class SequenceRates:
    """How often a drafter's guesses are accepted in one sequence: as over all of them, times how many held here of each
    that should."""

    __slots__ = ("_expected", "_held", "_shared")

    def __init__(self, shared: GuessRates) -> None:
        self._shared = shared
        self._held = self._expected = c.OWN_WEIGHT

    def __getitem__(self, grade: int) -> float:
        return min(self._shared.rates[grade] * self._held / self._expected, 1.0)

    @property
    def rates(self) -> list[float]:
        """[grade]"""
        factor = self._held / self._expected
        return [min(rate * factor, 1.0) for rate in self._shared.rates]

    def count(self, grade: int, accepted: bool) -> None:
        """One guess was judged."""
        self._held += accepted
        self._expected += self._shared.rates[grade]
        self._shared.count(grade, accepted)
        if self._expected > c.MEMORY:
            self._held /= 2
            self._expected /= 2


def first_rates(drafter: Drafter, memory: float | None = None) -> GuessRates:
    """What a drafter's guesses are worth before any was judged: its ``grade_rates``, where it has them, whatever others
    say. A few trials outweigh them."""
    known = list(drafter.grade_rates) if isinstance(drafter, Graded) else []
    weight = c.MEASURED_WEIGHT if known else c.UNKNOWN_WEIGHT
    return GuessRates((known + [c.FIRST_RATE] * (MAX_GRADES - len(known))) * 3, weight, memory)
