"""The planner at work: merges several drafters' guesses into one tree and verifies as many rows as pay, if any
(docs/planner.md).

How many rows pay depends on measured times, so trees differ from run to run. The tokens do not: all guesses are point
masses (drafters that draw are asked to share the target's noise), so the target alone decides each token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

from headstart.common.enumerations import VerifyRule
from headstart.common.phases import phase
from headstart.drafting.abilities import bytes_of
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.auto.itself import worth_asking
from headstart.drafting.methods.auto.members import FREE, ITSELF, AutoOptions, found_drafters, small_model
from headstart.drafting.methods.auto.outsiders import Outsiders
from headstart.drafting.options import require
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Load
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.members import Brought
from headstart.drafting.planning.merged import MergedGuesses
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.planned_stretch import Lane
from headstart.drafting.planning.round_costs import TreeSize
from headstart.drafting.registry import create_drafter, default_for
from headstart.errors import HeadstartError
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import RoundRecord, StretchDrafting, StretchLimits

_IMPOSSIBLE = 1e-9


@dataclass(slots=True)
class _Round:
    """What is kept of a proposal until its outcome is known."""

    load: Load | None = None
    """None: the pass also reads prompts, and says nothing of plain rounds."""
    lanes: list[Lane] = field(default_factory=list)
    """Of those that were asked."""
    size: TreeSize = field(default_factory=lambda: TreeSize(0))
    seconds: float = 0.0
    """That the proposal took."""
    proposed_at: float = 0.0
    in_vain: float | None = None
    """Seconds that were charged for rounds at once which a drafter cannot take part in; None: they were not wanted."""


class AutoDrafter:
    """Merges the guesses of several drafters and verifies as many of them as pay."""

    Options = AutoOptions
    parts = PlannerParts()
    """What it is made of; a subclass may bring others."""

    def __init__(self, context: DraftContext, options: AutoOptions) -> None:
        names = options.names or found_drafters(context, options)
        given = {name: options.of(name) for name in names}
        require(
            options.model is None or any("model" in each for each in given.values()),
            f"model is {options.model!r}, but none of {', '.join(names)} runs one; leave it out.",
        )
        drafters = _opened(context, options, given)
        names = list(drafters)
        self._clock = self.parts.clock
        self._members = [self.parts.member(drafter, 1 << place) for place, drafter in enumerate(drafters.values())]
        self._outsiders = Outsiders(names, context)
        self._followed: dict[int, Followed] = {}
        self.costs = self.parts.costs()
        """Measured costs of rounds."""
        self.safeguard = self.parts.safeguard()
        """What guesses may lose."""
        if context.runner is not None:
            with phase("Timing passes, to know how many guesses pay"):
                trials = self.parts.trials(context.runner)
                for tried in trials:
                    self.costs.passes.add(tried.rows, tried.seconds)
            if not options.names and names == [FREE] and options.model is None:
                further = small_model(context, _small_drafter)
                if further is None:
                    further = worth_asking(context, trials, lambda context: create_drafter(ITSELF, context))
                self._members += [] if further is None else [self.parts.member(further, 1 << len(self._members))]
        self._asked: Sequence[int] = range(len(self._members))
        """Places of those that were asked last."""
        self._round = _Round()
        self._in_vain: float | None = None
        """Of the round to come."""
        self._need()

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(member.drafter) for member in self._members)

    def begin(self, sequence: SequenceView) -> None:
        # It is asked to share the target's noise, so that it guesses point masses.
        view = _coupled(sequence)
        followed = self._followed[sequence.id] = Followed.begin(view, self._members)
        load = Load.of([each.view for each in self._followed.values()])
        for place, member in enumerate(self._members):
            followed.begun[place] = beam_of(view) is None and member.hearing[load.size].lasts
            followed.unheard[place] = not followed.begun[place]
            if followed.begun[place]:
                self._timed(place, load, member.drafter.begin, view)
        self._need()

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        start = self._clock()
        followed = [self._followed[sequence.id] for sequence in sequences]
        for each in followed:
            each.guesses = []
        beside_prompts = bool(budgets) and budgets[0].prompt_rows > 0
        load = None if beside_prompts else Load.of(sequences)
        self._round = now = _Round(load, in_vain=self._in_vain)
        self._in_vain = None
        budgets = self.costs.budgets(budgets)
        trees = [DraftTree.empty()] * len(followed)
        if load is not None and self.safeguard.allows(load):
            now.lanes = [lane for lane in self._lanes(followed) if self._ask(lane, followed, budgets, load)]
            if now.lanes:
                trees = self._cut(followed, budgets, load)
        self._asked = [lane.place for lane in now.lanes]
        self._need()
        now.proposed_at = self._clock()
        now.seconds = now.proposed_at - start
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        start = self._clock()
        load = Load.of([each.view for each in self._followed.values()]) if self._followed else Load(1, 0)
        heard = [self._show(place, outcomes, load) for place in range(len(self._members))]
        for outcome in outcomes if self._round.lanes else ():
            followed = self._followed.get(outcome.sequence.id)
            if followed is not None and outcome.committed:
                followed.judge(outcome.committed)
        if outcomes and outcomes[0].pass_rows:
            pass_seconds = self.parts.pass_seconds(outcomes[0])
            decodes = self._round.load is not None and all([outcome.committed for outcome in outcomes])
            self._charge_hearing(heard, load, 0.0 if decodes else pass_seconds)
            if decodes:
                self._settle(outcomes, pass_seconds, start)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        if len(sequences) < len(self._followed):
            return None
        start = self._clock()
        followed = [self._followed[sequence.id] for sequence in sequences]
        lanes = self._lanes(followed)
        planned = self.parts.stretch(followed, limits, lanes, self.costs, self.safeguard, self._clock)
        if planned is None:
            self._in_vain = sum([lane.seconds for lane in lanes if lane.asked])
            self.safeguard.charge(Load.of(sequences), self._in_vain)
            return None
        prepared = self._clock() - start

        def learn(rounds: Sequence[RoundRecord]) -> None:
            start = self._clock()
            planned.learn(rounds)
            for lane in lanes:
                self._rest(followed, lane.place, lane.asked, planned.load, len(rounds))
            if not planned.is_plain:
                self.safeguard.charge(planned.load, prepared + self._clock() - start)

        return StretchDrafting(planned.guessers, planned.cut(), learn)

    def end(self, sequence_id: int) -> None:
        followed = self._followed.pop(sequence_id, None)
        if followed is not None:
            load = Load.of([followed.view, *(each.view for each in self._followed.values())])
            for place, member in enumerate(self._members):
                if followed.begun[place]:
                    self._timed(place, load, member.drafter.end, sequence_id)
            self._need()

    def _need(self) -> None:
        """States are looked up where a drafter reads along, best ids where one that wants them was asked."""
        few = len(self._followed) <= c.FEW
        for place, member in enumerate(self._members):
            member.needs = self._outsiders.needs(place, member.drafter)
        taps = {tap for member in self._members if few for tap in member.needs.taps}
        top_ids = max([self._members[place].needs.top_ids for place in self._asked], default=0)
        self.needs = TargetSignals(tuple(sorted(taps)), top_ids)

    def _follows(self, place: int, sequence_id: int) -> bool:
        """Whether one drafter is shown what becomes of a sequence. One that missed rounds of it reads on after them."""
        if place in self._outsiders.failed:
            return False
        few = len(self._followed) <= c.FEW or not self._members[place].reads_along
        return few and sequence_id in self._followed and not self._followed[sequence_id].unheard[place]

    def _lanes(self, followed: Sequence[Followed]) -> list[Lane]:
        """Of each drafter, and the sequences that it follows."""
        return [
            Lane(
                place,
                member,
                [i for i, each in enumerate(followed) if self._follows(place, each.view.id)],
                partial(self._outsiders.answer, place),
            )
            for place, member in enumerate(self._members)
        ]

    def _ask(self, lane: Lane, followed: Sequence[Followed], budgets: Sequence[DraftBudget], load: Load) -> bool:
        """Let one drafter guess for the sequences for which its allowance lasts; whether it did."""
        start = self._clock()
        lane.choose(followed, budgets, load)
        views, allowed = [followed[i].view for i in lane.asked], [budgets[i] for i in lane.asked]
        propose = partial(lane.member.drafter.propose, views, allowed)
        guesses = self._outsiders.guesses(lane.place, propose, allowed) if lane.asked else []
        for i, own in zip(lane.asked, guesses, strict=False):  # there are none where it fails
            followed[i].guesses.append((lane.place, own))
        if guesses:
            lane.answered(followed)
            lane.seconds = self._clock() - start
        return bool(guesses)

    def _show(self, place: int, outcomes: Sequence[RoundOutcome], load: Load) -> float:
        """Let one drafter hear of what was read and said; returns the seconds that it took."""
        start, member = self._clock(), self._members[place]
        # Where some sequences left, it reads on after the next pass, which looks its states up.
        heard = [
            outcome
            for outcome in outcomes
            if self._follows(place, outcome.sequence.id)
            and set(member.needs.taps) <= set(outcome.hidden.taps)
            and self._followed[outcome.sequence.id].goes_on_hearing(place, member, load, self.safeguard)
        ]
        if heard:
            self._outsiders.answer(place, member.drafter.observe, heard)
        return self._clock() - start

    def _cut(self, followed: Sequence[Followed], budgets: Sequence[DraftBudget], load: Load) -> list[DraftTree]:
        """Trees of as many nodes as pay, the likeliest of all sequences."""
        for each, budget in zip(followed, budgets, strict=True):
            each.merge(self._members)
            each.go_on(self._members, budget, self._outsiders.guesses)
        self._round.size, chosen = self._chosen([each.merged for each in followed], followed, budgets)
        self._credit(followed, budgets, chosen, load)
        return [each.merged.tree(nodes) for each, nodes in zip(followed, chosen, strict=True)]

    def _chosen(
        self, merged: Sequence[MergedGuesses], followed: Sequence[Followed], budgets: Sequence[DraftBudget]
    ) -> tuple[TreeSize, list[list[int]]]:
        """How many nodes pay over all sequences, and those of each, the likeliest first."""
        listed = [(reach, i, node) for i, each in enumerate(merged) for node, reach in enumerate(each.reach)]
        # Reach falls along every path and the sort is stable, so a parent stays before its child.
        listed.sort(key=itemgetter(0), reverse=True)
        left, ranked = [budget.nodes for budget in budgets], list[tuple[float, int, int]]()
        for reach, i, node in listed:
            if left[i] > 0:
                ranked.append((reach, i, node))
            left[i] -= 1
        context = sum([len(each.view.tokens) for each in followed]) / len(followed)
        size = self.costs.size(len(followed), [reach for reach, _, _ in ranked], context)
        chosen: list[list[int]] = [[] for _ in followed]
        for _, i, node in ranked[: size.nodes]:
            chosen[i].append(node)
        return size, chosen

    def _credit(
        self, followed: Sequence[Followed], budgets: Sequence[DraftBudget], chosen: list[list[int]], load: Load
    ) -> None:
        """What each drafter brings: what the round promises with it, less what it promises with those before it."""
        lanes, before = self._round.lanes, [(0.0, 0)] * len(followed)
        for count, lane in enumerate(lanes, start=1):
            merged, nodes = [each.merged for each in followed], chosen
            if count < len(lanes):
                merged = [each.merged_first(self._members, count) for each in followed]
                _, nodes = self._chosen(merged, followed, budgets)
            promised = [
                (sum([guesses.reach[node] for node in own]), len(own))
                for guesses, own in zip(merged, nodes, strict=True)
            ]
            for i in lane.asked:
                own = followed[i].allowance(lane.place, lane.member, load)
                gain, rows = promised[i][0] - before[i][0], promised[i][1] - before[i][1]
                lane.brought.append(Brought(own, gain, rows, i in lane.new))
            before = promised

    def _settle(self, outcomes: Sequence[RoundOutcome], pass_seconds: float, start: float) -> None:
        """What the round cost and brought."""
        first, now = outcomes[0], self._round
        assert now.load is not None
        row_keys = sum([len(outcome.row_tokens) * outcome.first_position for outcome in outcomes])
        between = max(0.0, start - now.proposed_at - pass_seconds - first.signal_seconds)
        between += max(0.0, first.ahead_seconds - (now.in_vain or 0.0))
        shown = self._clock() - start
        seconds = now.seconds + pass_seconds + first.signal_seconds + between + shown
        # Without the drafters it would have been one of several at once, of which each takes little more than its pass.
        alone = pass_seconds + (between if now.in_vain is None else 0.0)
        said = sum([len(outcome.committed) for outcome in outcomes])
        self.costs.add(first.pass_rows, pass_seconds, row_keys, between + shown)
        self.costs.said(said, max(seconds, _IMPOSSIBLE), now.size.per_row)
        plain = self.safeguard.plain.seconds(now.load)
        if not now.lanes or plain is None:
            self.safeguard.decoded(now.load, [alone])
        else:
            self.safeguard.speculated(now.load, said / len(outcomes), seconds, plain, alone)
            for lane in now.lanes:
                lane.member.settle(now.load, lane.brought, lane.seconds, now.size.per_row, plain)
        if not now.lanes and now.in_vain is not None:
            for place, member in enumerate(self._members):
                if member.reads_along and any([self._follows(place, outcome.sequence.id) for outcome in outcomes]):
                    member.heard(now.load, between, self._plain_seconds(now.load) or alone, was_asked=False)
        asked = {lane.place: lane.asked for lane in now.lanes}
        followed = [self._followed.get(outcome.sequence.id) for outcome in outcomes]
        for place in range(len(self._members)):
            self._rest(followed, place, asked.get(place, ()), now.load, 1)

    def _rest(
        self, followed: Sequence[Followed | None], place: int, asked: Sequence[int], load: Load, rounds: int
    ) -> None:
        """Some rounds are over in which a drafter was asked about these sequences alone, or about none."""
        if not asked:
            self._members[place].rested(load, rounds)
        for i, each in enumerate(followed):
            if each is not None and i not in asked:
                each.rest(place, load, rounds)

    def _timed(self, place: int, load: Load, show: Callable[..., object], *shown: object) -> None:
        """Let one drafter know that a sequence begins or ends: what that takes is part of hearing."""
        start, plain = self._clock(), self._plain_seconds(load)
        self._outsiders.answer(place, show, *shown)
        if plain:
            self._members[place].hearing[load.size].settle(0.0, (self._clock() - start) / plain)

    def _plain_seconds(self, load: Load) -> float | None:
        """Of a plain round; until one was timed, of its pass."""
        plain = self.safeguard.plain.seconds(load)
        if plain is None and self.costs.passes.known:
            return self.costs.passes.seconds(load.sequences, load.sequences)[0]
        return plain

    def _charge_hearing(self, heard: Sequence[float], load: Load, of_seconds: float) -> None:
        """What it took to show the drafters a round, or what a pass of ``of_seconds`` read of prompts."""
        plain = self._plain_seconds(load)
        if plain:
            for place, (member, seconds) in enumerate(zip(self._members, heard, strict=True)):
                if of_seconds:
                    member.read(load, seconds, plain, of_seconds)
                else:
                    member.heard(load, seconds, plain, place in self._asked)


def _small_drafter(context: DraftContext, model: str) -> Drafter:
    return create_drafter(default_for("model"), context, model=model)


def _coupled(sequence: SequenceView) -> InnerSequence:
    """As the planner shows it to its drafters: it asks them to share the target's noise, so that they guess point
    masses."""
    return InnerSequence.of(sequence, speculation=replace(sequence.speculation, verify=VerifyRule.COUPLED))


def _opened(
    context: DraftContext, options: AutoOptions, given: Mapping[str, Mapping[str, object]]
) -> dict[str, Drafter]:
    """Those of ``given`` names -> options. One that was found, not asked for, and cannot be made is left out, and why
    is told.

    Raises:
        HeadstartError: one that was asked for cannot be made.
    """
    opened: dict[str, Drafter] = {}
    for name, own in given.items():
        try:
            opened[name] = create_drafter(name, context, **own)
        except HeadstartError as error:
            if options.names or name == FREE or "model" in own:
                raise
            context.tell(f"{name} does not guess for this model: {error}")
    return opened
