"""A sequence that is being decoded, as the planner sees it: what its drafters guess for it, how likely each guess is to
be accepted, and what is learnt from those that were judged."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.planning.learned_acceptance import Clues, LearnedAcceptance, chances_of, clues_of
from headstart.drafting.planning.members import Member, Standing
from headstart.drafting.planning.merged import NOTHING, Guesses, MergedGuesses, Overlay


@dataclass(slots=True)
class Followed:
    """One sequence."""

    view: InnerSequence
    rates: list[GuessRates]
    """[member]"""
    learned: list[LearnedAcceptance]
    """[member] its scope's."""
    standings: list[Standing]
    """[member]"""
    is_read: list[bool | None]
    """[member] whether it follows what is said; None: nothing was said yet."""
    guesses: list[tuple[int, Guesses]] = field(default_factory=list)
    """[(place of the member, its latest guesses)]; empty: no drafter was asked."""
    clues: list[Clues] = field(default_factory=list)
    """Of those guesses, in the same order, once they were merged."""
    merged: MergedGuesses = NOTHING

    @classmethod
    def begin(cls, view: InnerSequence, members: Sequence[Member], scope: Hashable) -> Followed:
        """Of a sequence that begins: rates start from those of its ``scope``."""
        return cls(
            view,
            [member.own_rates(scope) for member in members],
            [member.learned[scope] for member in members],
            [Standing() for _ in members],
            [None] * len(members),
        )

    def fork(self, view: InnerSequence) -> Followed:
        """Of a sequence that goes on from this one: beams of one search share what was learnt of them."""
        return replace(
            self, view=view, is_read=self.is_read.copy(), guesses=self.guesses.copy(), clues=self.clues.copy()
        )

    def forget_guesses(self) -> None:
        """A round begins, or its guesses were judged."""
        self.guesses, self.clues = [], []

    def judge(self, said: Sequence[int]) -> None:
        """Learn from what the target said after the root."""
        for (place, guesses), clues in zip(self.guesses, self.clues, strict=True):
            judged = guesses.judge(said)
            self.learned[place].learn(clues[[guess for guess, _ in judged]], [holds for _, holds in judged])
            for guess, holds in judged:
                self.rates[place].count(guesses.grades[guess], holds)
        self.forget_guesses()


def merge(followed: Sequence[Followed], members: Sequence[Member]) -> None:
    """Lay the drafters' guesses for each sequence over one another, and estimate how likely each is accepted."""
    told = []
    for each in followed:
        overlay = Overlay([(members[place].bit, guesses) for place, guesses in each.guesses])
        related = overlay.related()
        each.guesses = [(place, guesses) for (place, _), guesses in zip(each.guesses, related, strict=True)]
        told.append((overlay, related, [each.rates[place].log_odds for place, _ in each.guesses]))
    for each, (overlay, _, _), clues in zip(followed, told, clues_of(told), strict=True):
        each.clues = clues
        each.merged = overlay.merged(
            [
                chances_of(rows @ each.learned[place].weights).tolist()
                for (place, _), rows in zip(each.guesses, clues, strict=True)
            ]
        )
