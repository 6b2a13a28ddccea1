"""The planner in rounds that are run at once: it settles beforehand who is asked and what rows cost, and learns from
the rounds afterwards as if it had been there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import call

from headstart.drafting.abilities import RunsInStretches, stretch_drafting
from headstart.drafting.base import DraftBudget, beam_of
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Load, Safeguard
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.members import Brought, Member
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.passes.rounds import MOST_GUESSERS, CutRule, Guesser, RoundRecord, StretchDrafting, StretchLimits


@dataclass
class Lane:
    """One of the drafters in a round, or in several that are run at once."""

    place: int
    member: Member
    read: Sequence[int]
    """Sequences that it follows."""
    answer: Callable[..., StretchDrafting | None] = call
    """Lets it take part; None, too, where it has failed."""
    asked: Sequence[int] = ()
    """Those that it guesses for."""
    new: frozenset[int] = frozenset()
    """Those of them that it never guessed for."""
    seconds: float = 0.0
    """That it took to ask, or to prepare."""
    brought: list[Brought] = field(default_factory=list)
    """To each of them."""

    def choose(self, followed: Sequence[Followed], budgets: Sequence[DraftBudget], load: Load) -> None:
        """Those for whom its allowance lasts are asked about; beams are not: what guesses bring them seldom pays."""
        self.asked = [
            i
            for i in self.read
            if budgets[i].nodes
            and budgets[i].depth
            and beam_of(followed[i].view) is None
            and self.member.asks(followed[i].allowance(self.place, self.member, load), load)
        ]

    def answered(self, followed: Sequence[Followed]) -> None:
        """It has guessed, or is about to."""
        self.new = frozenset([i for i in self.asked if not followed[i].asked[self.place]])
        for i in self.asked:
            followed[i].asked[self.place] = True

    @property
    def follows(self) -> Sequence[int]:
        """Sequences in which it takes part: who reads along is shown what is said, others learn it later."""
        return self.read if self.member.reads_along else self.asked


@dataclass(frozen=True)
class PlannedStretch:
    """Rounds of the sequences that are decoded."""

    followed: Sequence[Followed]
    limits: Sequence[StretchLimits]
    load: Load
    lanes: Sequence[Lane]
    """Those that take part."""
    guessers: list[list[Guesser | None]]
    """[sequence][lane]."""
    costs: RoundCosts
    safeguard: Safeguard

    @classmethod
    def of(
        cls,
        followed: Sequence[Followed],
        limits: Sequence[StretchLimits],
        lanes: Sequence[Lane],
        costs: RoundCosts,
        safeguard: Safeguard,
        clock: Callable[[], float],
    ) -> PlannedStretch | None:
        """None where a drafter that is asked, or reads along, cannot take part."""
        load, budgets = Load.of([each.view for each in followed]), [each.budget for each in limits]
        for lane in lanes:
            if lane.member.reads_along:
                goes_on = [followed[i].goes_on_hearing(lane.place, lane.member, load, safeguard) for i in lane.read]
                lane.read = list(compress(lane.read, goes_on))
        for lane in lanes if safeguard.allows(load) else ():
            lane.choose(followed, budgets, load)
        used = [lane for lane in lanes if lane.follows]
        if len(used) > MOST_GUESSERS or sum([lane.member.reads_along for lane in used]) > 1:
            return None
        if not all([isinstance(lane.member.drafter, RunsInStretches) for lane in used]):
            return None
        guessers: list[list[Guesser | None]] = [[None] * len(used) for _ in followed]
        for slot, lane in enumerate(used):
            start, follows = clock(), lane.follows
            allowed = [
                replace(limits[i], budget=budget, guesses=i in lane.asked)
                for i, budget in zip(follows, costs.budgets([budgets[i] for i in follows]), strict=True)
            ]
            views = [followed[i].view for i in follows]
            drafting = lane.answer(stretch_drafting, lane.member.drafter, views, allowed)
            lane.seconds = clock() - start
            if drafting is None or not drafting.guessers or drafting.cut_rule is not None:
                return None
            for i, (guesser,) in zip(follows, drafting.guessers, strict=True):
                if guesser is None:
                    return None
                guesser.rates = followed[i].rates[lane.place].rates
                guessers[i][slot] = guesser
        for lane in used:
            lane.answered(followed)
        return cls(followed, limits, load, used, guessers, costs, safeguard)

    @property
    def is_plain(self) -> bool:
        """Whether nobody guesses."""
        return not any([lane.asked for lane in self.lanes])

    def cut(self) -> CutRule:
        """How many guesses are verified, and when the rounds end because they have not paid. Plain ones that are to be
        timed are as few as can be."""
        roots, other = len(self.followed) + self.limits[0].riders, self.costs.other_seconds
        plain = self.safeguard.plain.seconds(self.load)
        if self.is_plain or plain is None:
            return CutRule([0.0], other, 0.0, -math.inf if self.safeguard.plain.due(self.load) else math.inf)
        nodes = sum([each.budget.nodes for each in self.limits])
        context = sum([len(each.view.tokens) for each in self.followed]) / len(self.followed)
        seconds = self.costs.passes.seconds(roots, roots + nodes, context)
        allowance = self.safeguard.allowances[self.load.size].rounds * plain
        return CutRule(seconds, other, plain, allowance, c.LEAST_GAIN, c.MOST_CERTAIN)

    def learn(self, rounds: Sequence[RoundRecord]) -> None:
        """What these rounds say of rates, costs and allowances."""
        for i, of_sequence in enumerate(self.guessers):
            for slot, guesser in enumerate(of_sequence):
                if guesser is not None:
                    judged = sum([done.spans[i].judged[slot] for done in rounds])
                    rates = self.followed[i].rates[self.lanes[slot].place]
                    for judgement in guesser.judgements[:judged]:
                        rates.count(judgement.grade, judgement.holds)
        self._charge_hearing(sum([done.read_seconds for done in rounds]))
        plain, timings = self.safeguard.plain.seconds(self.load), list[float]()
        context = sum([len(each.view.tokens) for each in self.followed]) / len(self.followed)
        # Plain rounds are like each other: some of them tell enough.
        for number, done in enumerate(rounds[: c.PLAIN_LEAST] if self.is_plain else rounds):
            other = done.walk_seconds + done.other_seconds
            seconds = done.pass_seconds + other + done.read_seconds + sum(done.draft_seconds)
            self.costs.add(done.rows, done.pass_seconds, done.rows * context, other + done.read_seconds)
            self.costs.said(sum([span.said for span in done.spans]), seconds, done.row_seconds)
            if self.is_plain or plain is None:
                timings.append(done.pass_seconds + other)
            else:
                self._settle(done, seconds, plain, first=number == 0)
        if timings:
            self.safeguard.decoded(self.load, timings, len(rounds) if self.is_plain else len(timings))

    def _charge_hearing(self, seconds: float) -> None:
        """What it took to show the drafter that reads along what was said."""
        plain = self.safeguard.plain.seconds(self.load)
        for lane in self.lanes:
            if plain is not None and lane.member.reads_along:
                taken = seconds if lane.asked else seconds + lane.seconds
                lane.member.heard(self.load, taken, plain, bool(lane.asked))

    def _settle(self, done: RoundRecord, seconds: float, plain: float, first: bool) -> None:
        """What a round with guesses, of so many seconds, cost and brought, and what of it was each drafter's."""
        said = sum([span.said for span in done.spans]) / len(done.spans)
        without_drafts = done.pass_seconds + done.walk_seconds + done.other_seconds
        self.safeguard.speculated(self.load, said, seconds, plain, without_drafts)
        for slot, lane in enumerate(self.lanes):
            brought = [
                Brought(
                    self.followed[i].allowance(lane.place, lane.member, self.load),
                    done.spans[i].gains[slot],
                    done.spans[i].verified[slot],
                    first and i in lane.new,
                )
                for i in lane.asked
                if done.spans[i].asked  # nobody is asked where there is no room for a guess
            ]
            taken = done.draft_seconds[slot] + (lane.seconds if first else 0.0)
            lane.member.settle(self.load, brought, taken, done.row_seconds, plain)
