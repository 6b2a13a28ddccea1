"""A sequence that is being decoded, as the planner sees it: what its drafters guess for it, how likely each guess is to
be accepted, and what is learnt from those that were judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headstart.drafting.abilities import Continuing
from headstart.drafting.base import DraftBudget
from headstart.drafting.inner_sequence import InnerSequence, adapter_of
from headstart.drafting.planning.allowances import Allowance, Load, Safeguard, Size
from headstart.drafting.planning.guess_rates import SequenceRates
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.merged import NOTHING, Guesses, MergedGuesses, merge
from headstart.passes.draft_tree import DraftTree

Guess = Callable[[int, Callable[[], Sequence[DraftTree]], Sequence[DraftBudget]], list[Guesses]]
"""What a drafter, by its place, is made to guess, by a budget for each sequence; nothing, where it has failed."""


@dataclass(slots=True)
class Followed:
    """One sequence."""

    view: InnerSequence
    rates: list[SequenceRates]
    """[member]"""
    begun: list[bool]
    """[member] whether it was told that the sequence began."""
    asked: list[bool]
    """[member] whether it was ever asked about the sequence."""
    heard: list[bool]
    """[member] whether it was ever shown what is read,"""
    unheard: list[bool]
    """and whether it follows the sequence no more: showing it what is read and said took too long."""
    allowances: dict[tuple[int, Size], Allowance] = field(default_factory=dict)
    """By member and ``Load.size``."""
    guesses: list[tuple[int, Guesses]] = field(default_factory=list)
    """[(place of the member, its latest guesses)]; empty: no drafter was asked."""
    related: list[Guesses] = field(default_factory=list)
    """The same, with what the others say in their grades."""
    merged: MergedGuesses = NOTHING

    @classmethod
    def begin(cls, view: InnerSequence, members: Sequence[Member]) -> Followed:
        """Of a sequence that begins."""
        rates = [member.own_rates(adapter_of(view)) for member in members]
        begun, asked, heard, unheard = ([False] * len(members) for _ in range(4))
        return cls(view, rates, begun, asked, heard, unheard)

    def allowance(self, place: int, member: Member, load: Load) -> Allowance:
        """What asking a member about the sequence may still cost, in the sequence's own tokens."""
        key = place, load.size
        if key not in self.allowances:
            self.allowances[key] = member.own_allowance(load)
        return self.allowances[key]

    def goes_on_hearing(self, place: int, member: Member, load: Load, safeguard: Safeguard) -> bool:
        """Whether a member is shown what is read and said. If not, it never is again: it would miss a part. One that
        was shown the beginning is shown the rest while it is asked."""
        lasts = member.hearing[load.size].lasts
        if not lasts and self.heard[place] and safeguard.allowances[load.size].lasts:
            lasts = member.asks(self.allowance(place, member, load), load)
        self.heard[place] |= lasts
        self.unheard[place] |= not lasts
        return lasts

    def rest(self, place: int, load: Load, rounds: int) -> None:
        """Some rounds are over in which a member was not asked about the sequence."""
        if (allowance := self.allowances.get((place, load.size))) is not None:
            allowance.settle(rounds, rounds)

    def merge(self, members: Sequence[Member]) -> None:
        """Lay the drafters' guesses over one another, and estimate how likely each is accepted."""
        self.merged, self.related = merge(self._proposals(members))

    def merged_first(self, members: Sequence[Member], count: int) -> MergedGuesses:
        """What the first of them guess, as if nobody else had."""
        return merge(self._proposals(members)[:count])[0]

    def _proposals(self, members: Sequence[Member]) -> list[tuple[int, Guesses, SequenceRates]]:
        return [(members[place].bit, guesses, self.rates[place]) for place, guesses in self.guesses]

    def go_on(self, members: Sequence[Member], budget: DraftBudget, guess: Guess) -> None:
        """Let a drafter that can guess on behind the likeliest path, if it has not guessed that by itself."""
        path, depth = self.merged.likeliest(), min(budget.depth, budget.nodes)
        for place, _ in self.guesses if 0 < len(path) < depth else ():
            drafter, bit, leaf = members[place].drafter, members[place].bit, path[-1]
            if not isinstance(drafter, Continuing) or self.merged.owners[leaf] & bit:
                continue
            left = replace(budget, depth=depth - len(path))
            tokens = [self.merged.tokens[node] for node in path]
            for more in guess(place, partial(_behind, drafter, self.view, tokens, left), [left]):
                rates = self.rates[place]
                self.merged = self.merged.extended(leaf, bit, more, [rates[grade] for grade in more.grades])
            return

    def judge(self, said: Sequence[int]) -> None:
        """Learn from what the target said after the root."""
        for (place, _), guesses in zip(self.guesses, self.related, strict=True):
            for guess, holds in guesses.judge(said):
                self.rates[place].count(guesses.grades[guess], holds)
        self.guesses, self.related = [], []


def _behind(drafter: Continuing, view: InnerSequence, tokens: list[int], budget: DraftBudget) -> list[DraftTree]:
    return [drafter.proceed(view, tokens, budget)]
