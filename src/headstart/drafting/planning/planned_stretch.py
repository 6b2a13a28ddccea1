"""The planner in rounds that are run at once: it settles beforehand who is asked and what rows cost, and learns from
the rounds afterwards as if it had been there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.drafting.abilities import RunsInStretches, stretch_drafting
from headstart.drafting.base import SequenceView
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.planning.learned_acceptance import LearnedAcceptance
from headstart.drafting.planning.members import Member, Standing
from headstart.drafting.planning.round_costs import PLAIN_EVERY, RoundCosts, TreeSize
from headstart.passes.rounds import MOST_GUESSERS, CutRule, Guesser, RoundRecord, StretchLimits


@dataclass(frozen=True)
class Lane:
    """One of the drafters, and what is known of it in each sequence."""

    member: Member
    standings: Sequence[Standing]
    """[sequence]."""
    rates: Sequence[GuessRates]
    """[sequence]."""
    learned: Sequence[LearnedAcceptance]
    """[sequence]."""
    read: Sequence[int]
    """Sequences that it follows."""

    def begin(self, sequences: Sequence[int], seconds: float) -> None:
        """The drafter is asked about these, some perhaps for the first time, and prepared for it in so many seconds."""
        new = [self.standings[i] for i in sequences if not self.standings[i].asked]
        for standing in new:
            standing.asked = True
        if new:
            self.member.first_cost.add(seconds / len(new))


@dataclass(frozen=True)
class _Asked:
    """Whom a drafter guesses for in a stretch."""

    steadily: list[int]
    """Sequences for which it pays."""
    probed: list[int]
    """One for which it rests, and is asked whether that is still right; or none."""
    rests: bool
    """Whether it rests for some sequence."""

    @classmethod
    def of(cls, lane: Lane) -> _Asked:
        """As ``AutoDrafter`` asks in a round, but about all sequences that a drafter meets for the first time."""
        member, standings = lane.member, lane.standings
        steadily = [i for i in lane.read if not member.rests(standings[i], len(standings))]
        known = all([standings[i].asked for i in steadily])
        if steadily and known and member.loses([standings[i] for i in steadily], len(standings)):
            steadily = []
        resting = [i for i in lane.read if i not in steadily]
        probed = [resting[member.probes % len(resting)]] if resting and member.probe_is_due else []
        return cls(steadily, probed, bool(resting))

    @property
    def sequences(self) -> list[int]:
        return self.steadily + self.probed


@dataclass(frozen=True)
class PlannedStretch:
    """Rounds of the sequences that are decoded."""

    views: Sequence[SequenceView]
    limits: Sequence[StretchLimits]
    lanes: Sequence[Lane]
    asked: Sequence[_Asked]
    """[lane]."""
    guessers: list[list[Guesser | None]]
    """[sequence][lane]."""
    costs: RoundCosts

    @classmethod
    def of(
        cls,
        views: Sequence[SequenceView],
        limits: Sequence[StretchLimits],
        lanes: Sequence[Lane],
        costs: RoundCosts,
    ) -> PlannedStretch | None:
        """None where a drafter cannot take part, or what a pass costs is to be found out. A resting drafter that is to
        be asked again is asked in every round of the stretch."""
        passes = costs.passes
        if len(lanes) > MOST_GUESSERS or not all([each.budget.depth for each in limits]):
            return None
        if not passes.known or passes.stale(len(views), PLAIN_EVERY):
            return None
        asked = [_Asked.of(lane) for lane in lanes]
        # One that reads along is shown what is said; any other learns it later.
        followed = [
            lane.read if lane.member.reads_along else whom.sequences for lane, whom in zip(lanes, asked, strict=True)
        ]
        if sum([lane.member.reads_along for lane in lanes]) > 1 or not all(
            [
                isinstance(lane.member.drafter, RunsInStretches)
                for lane, follows in zip(lanes, followed, strict=True)
                if follows
            ]
        ):
            return None
        guessers: list[list[Guesser | None]] = [[None] * len(lanes) for _ in views]
        for place, (lane, whom, follows) in enumerate(zip(lanes, asked, followed, strict=True)):
            if not follows:
                continue
            allowed = [
                replace(limits[i], budget=costs.budget(limits[i].budget), guesses=i in whom.sequences) for i in follows
            ]
            start = time.perf_counter()
            drafting = stretch_drafting(lane.member.drafter, [views[i] for i in follows], allowed)
            if drafting is None or not drafting.guessers or drafting.cut_rule is not None:
                return None
            lane.begin(whom.sequences, time.perf_counter() - start)
            for i, (guesser,) in zip(follows, drafting.guessers, strict=True):
                if guesser is None:
                    return None
                guesser.log_odds, guesser.weights = lane.rates[i].log_odds, lane.learned[i].weights
                guessers[i][place] = guesser
        return cls(views, limits, lanes, asked, guessers, costs)

    def cut(self, merits: Sequence[int]) -> CutRule:
        """How many guesses are verified; ``merits`` as ``auto_members.credits_of`` gives them."""
        roots = len(self.views)
        nodes = sum([each.budget.nodes for each in self.limits])
        context = sum([len(view.tokens) for view in self.views]) / roots
        seconds = self.costs.passes.seconds(roots, roots + nodes, context)
        return CutRule(merits, seconds, self.costs.other_seconds)

    def learn(self, rounds: Sequence[RoundRecord]) -> None:
        """What these rounds say of rates, standings and costs."""
        self._learn_rates(rounds)
        sizes = [TreeSize(done.nodes, done.expected_tokens, done.expected_seconds, done.row_seconds) for done in rounds]
        for place, (lane, asked) in enumerate(zip(self.lanes, self.asked, strict=True)):
            self._learn_worth(place, lane.member, asked, rounds, sizes)
        said = [sum([done.spans[i].said for done in rounds]) for i in range(len(self.views))]
        positions = [len(view.tokens) - 1 - count for view, count in zip(self.views, said, strict=True)]
        for done, size in zip(rounds, sizes, strict=True):
            rows = row_keys = 0
            for i, span in enumerate(done.spans):
                rows += 1 + len(span.tokens)
                row_keys += (1 + len(span.tokens)) * positions[i]
                positions[i] += span.said
            other = done.walk_seconds + done.other_seconds
            self.costs.add(rows, done.pass_seconds, row_keys, other, size, done.experts)

    def _learn_rates(self, rounds: Sequence[RoundRecord]) -> None:
        """Which guesses held."""
        for i, of_sequence in enumerate(self.guessers):
            for place, guesser in enumerate(of_sequence):
                judged, lane = sum([done.spans[i].judged[place] for done in rounds]), self.lanes[place]
                if guesser is None or not judged:
                    continue
                assert guesser.clues is not None
                judgements = guesser.judgements[:judged]
                lane.learned[i].learn(guesser.clues[:judged], [judgement.holds for judgement in judgements])
                for judgement in judgements:
                    lane.rates[i].count(judgement.grade, judgement.holds)

    def _learn_worth(
        self,
        place: int,
        member: Member,
        asked: _Asked,
        rounds: Sequence[RoundRecord],
        sizes: Sequence[TreeSize],
    ) -> None:
        """What a drafter cost and brought."""
        roots, standings = len(self.views), self.lanes[place].standings
        probes = []
        for done, size in zip(rounds, sizes, strict=True):
            # Nobody is asked where there is no room for a guess.
            steadily = [i for i in asked.steadily if done.spans[i].asked]
            probed = [i for i in asked.probed if done.spans[i].asked]
            asked_for, seconds = len(steadily) + len(probed), done.draft_seconds[place] + done.other_seconds
            for i in steadily:
                span = done.spans[i]
                member.judge(standings[i], size.worth(span.gains[place], span.verified[place]), roots, steady=True)
            if steadily:
                member.cost.add(asked_for, seconds)
            for i in probed:
                span = done.spans[i]
                probes.append(size.worth(span.gains[place], span.verified[place]))
            if asked.rests:
                member.rested(seconds / asked_for if probed else 0.0, self.costs.round_seconds, timed=not steadily)
        for i in asked.probed if probes else ():
            member.probes += 1
            member.judge(standings[i], sum(probes) / len(probes), roots, rounds=len(probes))
