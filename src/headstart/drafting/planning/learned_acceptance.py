"""How likely guesses are accepted: a logistic regression that learns while decoding, beside the graded rates.

A grade knows neither how sure a head is within its class, nor where a guess stands, nor how good the guesses of those
that agree with it are. The regression starts as the graded rate itself and learns what else tells (decision 0112).
Compiled code evaluates it in rounds that are run at once (``rounds/tree_cut.h``); learning is done here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.planning.guess_rates import AGREED, CONTRADICTED
from headstart.drafting.planning.merged import Guesses, Overlay
from headstart.passes.draft_tree import MAX_GRADES

Clues = NDArray[np.float64]
"""[guess, clue]: 1; log-odds of the graded rate; those of the drafter's own chance (0: it gives none); logarithms of
the depth and of 1 + the place among siblings; whether another drafter guesses the same, whether others only; the own
log-odds again where either holds; mean log-odds of the rates of those that guess the same."""

CLUES = 10
_RATE_CLUE = 1
_STEP_ROWS = 32
"""Judged guesses of one step: steps of fewer cost more time, of more overshoot."""
_LEARNING_RATE = 0.25
_MOST_WEIGHT = 4.0
_MEMORY = 0.998
"""What a judged guess still counts after the next one, in the comparison of the estimates."""
_CAUTION = 1e-4
"""The least chance that either estimate is held to have given what came: none is lost by a single guess."""


class LearnedAcceptance:
    """The weights of one drafter's clues, learnt by AdaGrad (Duchi et al. 2011) from the guesses that were judged.

    They count only while what they said of earlier guesses was at least as good, by log loss, as what the graded rates
    said; until then, and whenever the text turns against them, the estimate is the graded rate.
    """

    def __init__(self) -> None:
        self._graded: Clues = np.zeros(CLUES)
        self._graded[_RATE_CLUE] = 1.0
        self._weights = self._graded.copy()
        self._squares = np.ones(CLUES)
        self._waiting: list[tuple[Clues, NDArray[np.float64]]] = []
        self._rows = 0
        self._losses = np.zeros(2)
        """Decayed sums of log losses: of the graded rates, of the weights."""

    @property
    def weights(self) -> Clues:
        """[clue] those to estimate by."""
        return self._weights if self._losses[1] <= self._losses[0] else self._graded

    def learn(self, clues: Clues, held: Sequence[bool]) -> None:
        """Some guesses were judged.

        Args:
            clues: [guess, clue].
            held: [guess] whether the target said it.
        """
        if not len(held):
            return
        self._waiting.append((clues, np.array(held, np.float64)))
        self._rows += len(held)
        if self._rows < _STEP_ROWS:
            return
        rows = np.concatenate([rows for rows, _ in self._waiting])
        said = np.concatenate([said for _, said in self._waiting])
        self._waiting, self._rows = [], 0
        for first in range(0, len(said), _STEP_ROWS):
            self._step(rows[first : first + _STEP_ROWS], said[first : first + _STEP_ROWS])

    def _step(self, rows: Clues, held: NDArray[np.float64]) -> None:
        chances = chances_of(rows @ np.stack((self._graded, self._weights), axis=1))
        given = np.where(held[:, None] > 0, chances, 1.0 - chances)
        losses = -np.log(np.maximum(given, _CAUTION)).sum(axis=0)
        self._losses = self._losses * _MEMORY ** len(held) + losses
        gradients = (chances[:, 1] - held)[:, None] * rows
        self._squares += np.square(gradients).sum(axis=0)
        step = _LEARNING_RATE * gradients.sum(axis=0) / np.sqrt(self._squares)
        self._weights = np.clip(self._weights - step, -_MOST_WEIGHT, _MOST_WEIGHT)


def chances_of(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities, of any shape."""
    return 1.0 / (1.0 + np.exp(-log_odds))


def clues_of(
    told: Sequence[tuple[Overlay, Sequence[Guesses], Sequence[Sequence[float]]]],
) -> list[list[Clues]]:
    """[sequence][drafter] the clues of all guesses of a round, computed together.

    Args:
        told: of each sequence its overlaid guesses, the same as ``Overlay.related`` gives them, and of each of its
            drafters the log-odds of its rates by grade (``GuessRates.log_odds``).
    """
    rates: list[float] = []
    own: list[float] = []
    depths: list[int] = []
    ranks: list[int] = []
    grades: list[int] = []
    others: list[float] = []
    counts = []
    for overlay, related, log_odds in told:
        said = [[of[grade] for grade in each.grades] for each, of in zip(related, log_odds, strict=True)]
        for each, by_rate, by_others in zip(related, said, overlay.others(said), strict=True):
            rates += by_rate
            others += by_others
            own += each.own or [0.0] * len(by_rate)
            grades += each.grades
            of_depth, of_rank = each.places()
            depths += of_depth
            ranks += of_rank
            counts.append(len(by_rate))
    rows = np.empty((len(rates), CLUES))
    relation = np.array(grades, np.int32) // MAX_GRADES
    rows[:, 0], rows[:, 1], rows[:, 2] = 1.0, rates, own
    rows[:, 3], rows[:, 4] = np.log(depths), np.log1p(ranks)
    rows[:, 5], rows[:, 6] = relation == AGREED // MAX_GRADES, relation == CONTRADICTED // MAX_GRADES
    rows[:, 7:9] = rows[:, 5:7] * rows[:, 2:3]
    rows[:, 9] = others
    ends = np.cumsum([0, *counts]).tolist()
    blocks = iter([rows[first:end] for first, end in pairwise(ends)])
    return [[next(blocks) for _ in related] for _, related, _ in told]
