"""The planner at work: merges several drafters' guesses into one tree and verifies as many rows as pay, if any.

A round costs draft + target(rows) + overhead and yields one token plus the guesses that are accepted. All three costs
are measured while decoding; acceptance is learnt by drafter, grade and sequence. Each round, the nodes of all sequences
compete in one list, the likeliest first. It is cut where the expected tokens per unit of time are highest: the tree
form of Theorem 3.8 (Leviathan et al. 2023) with measured costs (docs/exactness.md 10). Nobody is asked while the
allowance for what does not pay is empty, and a drafter only while its own lasts (``planning/allowances.py``).

How many rows pay depends on measured times, so trees differ from run to run. The tokens do not: all guesses are point
masses (drafters that draw are asked to share the target's noise), so the target alone decides each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

from headstart.common.enumerations import VerifyRule
from headstart.common.phases import phase
from headstart.drafting.abilities import bytes_of, fork_or_begin
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.beam_trees import chosen_nodes, groups_of
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.auto.members import FREE, ITSELF, AutoOptions, found_drafters, small_model
from headstart.drafting.methods.auto.outsiders import Outsiders
from headstart.drafting.options import require
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Load
from headstart.drafting.planning.beam_plans import BeamPlans
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.itself import worth_asking
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
class _Asking:
    """One drafter in one round."""

    sequences: list[int]
    """Those that it guesses for."""
    new: frozenset[int]
    """Those of them that it never guessed for."""
    seconds: float
    brought: list[Brought] = field(default_factory=list)
    """To each sequence that is no beam: beams are judged by levels."""


@dataclass(slots=True)
class _Round:
    """What is kept of a proposal until its outcome is known."""

    load: Load | None = None
    """None: the pass also reads prompts, and says nothing of plain rounds."""
    askings: dict[int, _Asking] = field(default_factory=dict)
    """By the member's place."""
    size: TreeSize = field(default_factory=lambda: TreeSize(0))
    seconds: float = 0.0
    """That the proposal took."""
    proposed_at: float = 0.0


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
        self._beams = BeamPlans(self.costs)
        self._asked: Sequence[int] = range(len(self._members))
        """Places of those that were asked last."""
        self._round = _Round()
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
            followed.begun[place] = member.hearing[load.size].lasts
            followed.unheard[place] = not followed.begun[place]
            if followed.begun[place]:
                self._timed(place, load, member.drafter.begin, view)
        self._need()

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        known = self._followed.get(source.id)
        if known is None:
            self.begin(sequence)
            return
        view = _coupled(sequence)
        self._followed[sequence.id] = known.fork(view)
        for place, member in enumerate(self._members):
            if known.begun[place]:
                self._outsiders.answer(place, fork_or_begin, member.drafter, known.view, view)
        self._need()

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        start = self._clock()
        followed = [self._followed[sequence.id] for sequence in sequences]
        for each in followed:
            each.guesses = []
        beside_prompts = bool(budgets) and budgets[0].prompt_rows > 0
        self._round = now = _Round(None if beside_prompts else Load.of(sequences))
        budgets = self._beams.budgets(sequences, self.costs.budgets(budgets))
        trees = [DraftTree.empty()] * len(followed)
        if now.load is not None and self.safeguard.allows(now.load):
            for place in range(len(self._members)):
                self._ask(place, followed, budgets, now.load)
            if now.askings:
                trees = self._cut(followed, budgets, now.load)
        self._asked = [*now.askings]
        self._need()
        now.proposed_at = self._clock()
        now.seconds = now.proposed_at - start
        depths = {
            beam.group: max(int(trees[place].depths.max(initial=0)) for place in places)
            for beam, places in groups_of(sequences)
        }
        self._beams.drafted(now.seconds, depths)
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        start = self._clock()
        load = Load.of([each.view for each in self._followed.values()]) if self._followed else Load(1, 0)
        heard = [self._show(place, outcomes, load) for place in range(len(self._members))]
        self._beams.learn(outcomes)
        for outcome in outcomes if self._round.askings else ():
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
        lanes = [
            Lane(
                place,
                member,
                [i for i, sequence in enumerate(sequences) if self._follows(place, sequence.id)],
                partial(self._outsiders.answer, place),
            )
            for place, member in enumerate(self._members)
        ]
        planned = self.parts.stretch(followed, limits, lanes, self.costs, self.safeguard, self._clock)
        if planned is None:
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

    def _ask(self, place: int, followed: Sequence[Followed], budgets: Sequence[DraftBudget], load: Load) -> None:
        """Let one drafter guess for the sequences for which its allowance lasts."""
        member = self._members[place]
        asked = [
            i
            for i, (each, budget) in enumerate(zip(followed, budgets, strict=True))
            if budget.nodes
            and budget.depth
            and self._follows(place, each.view.id)
            and member.asks(each.allowance(place, member, load), load)
        ]
        if not asked:
            return
        start = self._clock()
        views, allowed = [followed[i].view for i in asked], [budgets[i] for i in asked]
        guesses = self._outsiders.guesses(place, partial(member.drafter.propose, views, allowed), allowed)
        if not guesses:
            return
        for i, own in zip(asked, guesses, strict=True):
            followed[i].guesses.append((place, own))
        new = frozenset([i for i in asked if not followed[i].asked[place]])
        for i in new:
            followed[i].asked[place] = True
        self._round.askings[place] = _Asking(asked, new, self._clock() - start)

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
            if beam_of(each.view) is None:
                each.go_on(self._members, budget, self._outsiders.guesses)
        self._round.size, chosen = self._chosen([each.merged for each in followed], followed, budgets)
        self._credit(followed, budgets, chosen, load)
        beams = chosen_nodes(
            [each.view for each in followed],
            budgets,
            [each.merged.tokens for each in followed],
            [each.merged.parents for each in followed],
            [[math.log(max(reach, _IMPOSSIBLE)) for reach in each.merged.reach] for each in followed],
        )
        return [each.merged.tree(beams.get(i, chosen[i])) for i, each in enumerate(followed)]

    def _chosen(
        self, merged: Sequence[MergedGuesses], followed: Sequence[Followed], budgets: Sequence[DraftBudget]
    ) -> tuple[TreeSize, list[list[int]]]:
        """How many nodes pay over all sequences, and those of each, the likeliest first; none of beams."""
        ranked: list[tuple[float, int, int]] = []
        for i, (each, guesses) in enumerate(zip(followed, merged, strict=True)):
            if beam_of(each.view) is None:
                ranked += [(-guesses.reach[node], i, node) for node in guesses.ranked(budgets[i].nodes)]
        # The sort is stable and reach falls along every path, so a parent stays before its child.
        ranked.sort(key=itemgetter(0))
        context = sum([len(each.view.tokens) for each in followed]) / len(followed)
        size = self.costs.size(len(followed), [-negative for negative, _, _ in ranked], context)
        chosen: list[list[int]] = [[] for _ in followed]
        for _, i, node in ranked[: size.nodes]:
            chosen[i].append(node)
        return size, chosen

    def _credit(
        self, followed: Sequence[Followed], budgets: Sequence[DraftBudget], chosen: list[list[int]], load: Load
    ) -> None:
        """What each drafter brings: what the round promises with it, less what it promises with those before it."""
        askings = self._round.askings
        before = [(0.0, 0)] * len(followed)
        for count, (place, asking) in enumerate(askings.items(), start=1):
            merged, nodes = [each.merged for each in followed], chosen
            if count < len(askings):
                merged = [each.merged_first(self._members, count) for each in followed]
                _, nodes = self._chosen(merged, followed, budgets)
            promised = [
                (sum([guesses.reach[node] for node in own]), len(own))
                for guesses, own in zip(merged, nodes, strict=True)
            ]
            for i in asking.sequences:
                if beam_of(followed[i].view) is None:
                    allowance = followed[i].allowance(place, self._members[place], load)
                    gain, rows = promised[i][0] - before[i][0], promised[i][1] - before[i][1]
                    asking.brought.append(Brought(allowance, gain, rows, i in asking.new))
            before = promised

    def _settle(self, outcomes: Sequence[RoundOutcome], pass_seconds: float, start: float) -> None:
        """What the round cost and brought."""
        first, now = outcomes[0], self._round
        assert now.load is not None
        row_keys = sum([len(outcome.row_tokens) * outcome.first_position for outcome in outcomes])
        between = max(0.0, start - now.proposed_at - pass_seconds - first.signal_seconds)
        shown = self._clock() - start
        seconds = now.seconds + pass_seconds + first.signal_seconds + between + shown
        said = sum([len(outcome.committed) for outcome in outcomes])
        self.costs.add(first.pass_rows, pass_seconds, row_keys, between + shown)
        self.costs.said(said, max(seconds, _IMPOSSIBLE), now.size.per_row)
        plain = self.safeguard.plain.seconds(now.load)
        if not now.askings or plain is None:
            self.safeguard.decoded(now.load, [pass_seconds + between])
        else:
            self.safeguard.speculated(now.load, said / len(outcomes), seconds, plain, pass_seconds + between)
            for place, asking in now.askings.items():
                if asking.brought:
                    self._members[place].settle(now.load, asking.brought, asking.seconds, now.size.per_row, plain)
        followed = [self._followed.get(outcome.sequence.id) for outcome in outcomes]
        for place in range(len(self._members)):
            asked = now.askings[place].sequences if place in now.askings else ()
            self._rest(followed, place, asked, now.load, 1)

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
                    member.heard(load, seconds, plain, place in self._round.askings)


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
