"""How often guesses hold, by the drafter's own classes of confidence and by what other drafters say in their place."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.abilities import Graded
from headstart.drafting.base import Drafter
from headstart.drafting.planning import constants as c
from headstart.passes.draft_tree import MAX_GRADES

ALONE, AGREED, CONTRADICTED = 0, MAX_GRADES, 2 * MAX_GRADES
"""Added to a guess's grade: no other drafter guesses a token after the same ones; one guesses the same; others only."""


class GuessRates:
    """How often a drafter's guesses were accepted, given that those above them were, by grade.

    Grades are the drafter's own, with ``ALONE``, ``AGREED`` or ``CONTRADICTED`` added. A guess counts only where its
    parent was on the target's path: acceptance is censored beyond the first rejection.

    Args:
        prior: where the rates start from: those of all sequences, for one sequence; or rates by grade.
        prior_weight: how many trials the prior is worth.
        memory: trials after which a grade's past counts half.
    """

    __slots__ = ("_hits", "_memory", "_prior", "_prior_rates", "_prior_weight", "_trials", "rates")

    def __init__(self, prior: GuessRates | Sequence[float], prior_weight: float, memory: float) -> None:
        self._prior = prior if isinstance(prior, GuessRates) else None
        self._prior_rates = prior.rates if isinstance(prior, GuessRates) else prior
        self._prior_weight = prior_weight
        self._memory = memory
        self.rates: list[float] = list(self._prior_rates)
        """[grade] the chance of a guess to be accepted, given its parent."""
        self._hits = [0.0] * len(self.rates)
        self._trials = [0.0] * len(self.rates)

    def count(self, grade: int, accepted: bool) -> None:
        """One guess was judged."""
        if self._prior is not None:
            self._prior.count(grade, accepted)
        self._hits[grade] = hits = self._hits[grade] + accepted
        self._trials[grade] = trials = self._trials[grade] + 1.0
        weight = self._prior_weight
        self.rates[grade] = (hits + weight * self._prior_rates[grade]) / (trials + weight)
        if trials > self._memory:
            self._hits[grade] /= 2
            self._trials[grade] /= 2


def first_rates(drafter: Drafter, memory: float) -> GuessRates:
    """What a drafter's guesses are worth before any was judged: its ``grade_rates``, where it has them, whatever others
    say. A few trials outweigh them."""
    known = list(drafter.grade_rates) if isinstance(drafter, Graded) else []
    weight = c.MEASURED_WEIGHT if known else c.UNKNOWN_WEIGHT
    return GuessRates((known + [c.FIRST_RATE] * (MAX_GRADES - len(known))) * 3, weight, memory)
