"""The planner in rounds that are run at once: it settles beforehand who is asked and what rows cost, and learns from
the rounds afterwards as if it had been there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.drafting.base import SequenceView, stretch_part
from headstart.drafting.planning.auto_members import Member, Standing
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.planning.round_costs import PLAIN_EVERY, RoundCosts, TreeSize
from headstart.models.stretch import MOST_GUESSERS, CutPlan, Guesser, RoundRecord, StretchLimits


@dataclass(frozen=True)
class Lane:
    """One drafter and one sequence."""

    member: Member
    standing: Standing
    rates: GuessRates


@dataclass(frozen=True)
class PlannedStretch:
    """Rounds of the only sequence that is decoded."""

    view: SequenceView
    limits: StretchLimits
    lanes: Sequence[Lane]
    asked: Sequence[bool]
    """[lane] whether the drafter guesses."""
    guessers: tuple[Guesser | None, ...]
    """[lane]."""
    costs: RoundCosts

    @classmethod
    def of(
        cls, view: SequenceView, limits: StretchLimits, lanes: Sequence[Lane], costs: RoundCosts
    ) -> PlannedStretch | None:
        """None where a drafter cannot take part, or something is to be found out: a drafter's first guesses, what a
        resting one would bring now, what a pass costs."""
        passes = costs.passes
        if len(lanes) > MOST_GUESSERS or not limits.depth or not passes.known or passes.stale(1, PLAIN_EVERY):
            return None
        asked = []
        for lane in lanes:
            rests = lane.member.rests(lane.standing, 1) or lane.member.loses([lane.standing], 1)
            if lane.member.probe_is_due if rests else not lane.standing.asked:
                return None
            asked.append(not rests)
        guessers: list[Guesser | None] = []
        for lane, is_asked in zip(lanes, asked, strict=True):
            drafter = lane.member.drafter
            if not is_asked and not drafter.needs.taps:  # it learns later what was said
                guessers.append(None)
                continue
            part = stretch_part(drafter, view, replace(limits, least=costs.least_reach, guesses=is_asked))
            if part is None or len(part.guessers) != 1 or part.guessers[0] is None:
                return None
            part.guessers[0].rates = lane.rates.rates
            guessers.append(part.guessers[0])
        if sum([bool(guesser.taps) for guesser in guessers if guesser is not None]) > 1:
            return None
        return cls(view, limits, lanes, asked, tuple(guessers), costs)

    def cut(self, merits: Sequence[int]) -> CutPlan:
        """How many guesses are verified; ``merits`` as ``auto_members.credits_of`` gives them."""
        seconds = self.costs.passes.seconds(1, 1 + self.limits.nodes, len(self.view.tokens))
        return CutPlan(merits, seconds, self.costs.other_seconds)

    def learn(self, rounds: Sequence[RoundRecord]) -> None:
        """What these rounds say of rates, standings and costs."""
        for place, (lane, guesser) in enumerate(zip(self.lanes, self.guessers, strict=True)):
            judged = sum([done.judged[place] for done in rounds])
            for judgement in () if guesser is None else guesser.judgements[:judged]:
                lane.rates.count(judgement.grade, judgement.holds)
        length = len(self.view.tokens) - sum([len(done.path) + 1 for done in rounds])
        for done in rounds:
            size = TreeSize(len(done.tokens), done.expected_tokens, done.expected_seconds, done.row_seconds)
            for place, (lane, is_asked) in enumerate(zip(self.lanes, self.asked, strict=True)):
                if not is_asked:
                    lane.member.rested(0.0, self.costs.round_seconds)
                elif done.draft_seconds[place]:  # nobody is asked where there is no room for a guess
                    lane.member.cost.add(1, done.draft_seconds[place] + done.other_seconds)
                    worth = size.worth(done.gains[place], done.verified[place])
                    lane.member.judge(lane.standing, worth, 1, steady=True)
            self.costs.add(done.rows, done.pass_seconds, done.rows * (length - 1), done.other_seconds, size)
            length += len(done.path) + 1
