"""The planner at work: merges several drafters' guesses into one tree and verifies as many rows as pay, if any.

A round costs draft + target(rows) + overhead and yields one token plus the guesses that are accepted. All three costs
are measured while decoding; acceptance is learnt by drafter, grade and sequence. Each round, the nodes of all sequences
compete in one list, the likeliest first. It is cut where the expected tokens per unit of time are highest: the tree
form of Theorem 3.8 (Leviathan et al. 2023) with measured costs (docs/exactness.md 10). A drafter rests for a sequence
if its guesses, beyond those of cheaper drafters, are worth less than its time and their rows; it is tried again now
and then.

How many rows pay depends on measured times, so trees differ from run to run. The tokens do not: all guesses are point
masses (drafters that draw are asked to share the target's noise), so the target alone decides each token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from headstart.common.enumerations import VerifyRule
from headstart.common.phases import phase
from headstart.drafting.abilities import bytes_of, fork_or_begin
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.beam_trees import chosen_nodes, groups_of
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.auto.members import FREE, ITSELF, AutoOptions, found_drafters, small_model
from headstart.drafting.options import require
from headstart.drafting.planning.beam_plans import BeamPlans
from headstart.drafting.planning.expert_calls import ExpertCalls
from headstart.drafting.planning.followed import Followed, merge
from headstart.drafting.planning.itself import worth_asking
from headstart.drafting.planning.members import Member, Standing
from headstart.drafting.planning.merged import Guesses
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.planned_stretch import Lane
from headstart.drafting.planning.round_costs import BESIDE_PROMPTS, TreeSize
from headstart.drafting.registry import create_drafter, default_for
from headstart.errors import HeadstartError
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import RoundRecord, StretchDrafting, StretchLimits

_STRANGERS = 2
"""Most sequences for which a drafter is first asked in one round: it may have their prompts to learn."""
_FEW = 4
"""Most sequences with which drafters that read the target's states are used: reading along costs time for every
sequence, asked or not, and in larger batches their guesses gain less (docs/experiments/batches.md, 0023)."""
_IMPOSSIBLE = 1e-9


@dataclass(slots=True)
class _Asking:
    """One drafter in one round."""

    member: Member
    rested: bool
    """Whether it rests for some sequence."""
    known: int
    """Sequences that it was asked about and had been asked about before."""
    seconds: float = 0.0
    """Time to ask it about the known sequences."""
    first_seconds: float = 0.0
    """Time to ask it about one new sequence."""
    probe_seconds: float = 0.0
    """Time to ask it about one sequence for which it rests."""


@dataclass(slots=True)
class _Round:
    """What is kept of a proposal until its outcome is known."""

    askings: list[_Asking] = field(default_factory=list)
    asked: int = 0
    """Questions, counted over all drafters and sequences."""
    brought: list[tuple[Member, Standing, float]] = field(default_factory=list)
    """What each drafter brought to each sequence beyond cheaper drafters, in seconds."""
    size: TreeSize | None = None
    """The tree sizes that were chosen; None: costs were not weighed."""
    own_seconds: float = 0.0
    """Time of the planner itself."""


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
        self._scope_of = context.scope_of
        drafters = _opened(context, options, given)
        names = list(drafters)
        self._members = [self.parts.member(drafter, 1 << place) for place, drafter in enumerate(drafters.values())]
        needs = [member.drafter.needs for member in self._members]
        taps = tuple(sorted({tap for need in needs for tap in need.taps}))
        self._all_needs = [
            TargetSignals(taps, top_ids) for top_ids in range(max((need.top_ids for need in needs), default=0) + 1)
        ]
        self.needs = self._all_needs[-1]
        """Best ids are included only in rounds in which a drafter that wants them was asked."""
        self._followed: dict[int, Followed] = {}
        experts = None if context.runner is None else context.runner.backend.config.experts
        self.costs = self.parts.costs(None if experts is None else ExpertCalls(experts.count, experts.used))
        """Measured costs of rounds."""
        if context.runner is not None:
            with phase("Timing passes, to know how many guesses pay"):
                trials = self.parts.trials(context.runner)
                for tried in trials.passes:
                    self.costs.passes.add(tried.rows, tried.seconds, experts=tried.experts)
                self.costs.passes.begin_per_key(trials.per_key)
                self.costs.passes.begin_per_expert(trials.per_expert)
            if not options.names and names == [FREE] and options.model is None:
                further = small_model(context, _small_drafter)
                if further is None:
                    further = worth_asking(context, trials.passes, lambda context: create_drafter(ITSELF, context))
                self._members += [] if further is None else [self.parts.member(further, 1 << len(self._members))]
        self._beams = BeamPlans(self.costs)
        self._merits = self.parts.credits(self._members)
        self._round = _Round()
        self._proposed_at = 0.0

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(member.drafter) for member in self._members)

    def begin(self, sequence: SequenceView) -> None:
        # It is asked to share the target's noise, so that it guesses point masses.
        view = _coupled(sequence)
        self._followed[sequence.id] = Followed.begin(view, self._members, self._scope_of(sequence))
        for member in self._members:
            member.drafter.begin(view)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        known = self._followed.get(source.id)
        if known is None:
            self.begin(sequence)
            return
        view = _coupled(sequence)
        self._followed[sequence.id] = known.fork(view)
        for member in self._members:
            fork_or_begin(member.drafter, known.view, view)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        start = time.perf_counter()
        followed = [self._followed[sequence.id] for sequence in sequences]
        for each in followed:
            each.forget_guesses()
        self._round = _Round()
        wanted = 0
        beside_prompts = bool(budgets) and budgets[0].prompt_rows > 0
        budgets = self._beams.budgets(sequences, [self.costs.budget(each) for each in budgets])
        if not beside_prompts or self.costs.may_pay_beside_prompts(len(self._followed)):
            for place, member in enumerate(self._members):
                if self._keeps(member) and self._ask(place, member, followed, budgets):
                    wanted = max(wanted, member.drafter.needs.top_ids)
        self.needs = self._all_needs[wanted]
        trees = self._cut(followed, budgets) if self._round.asked else [DraftTree.empty()] * len(followed)
        self._proposed_at = time.perf_counter()
        self._round.own_seconds += self._proposed_at - start
        depths = {
            beam.group: max(int(trees[place].depths.max(initial=0)) for place in places)
            for beam, places in groups_of(sequences)
        }
        self._beams.drafted(self._proposed_at - start, depths)
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        start = time.perf_counter()
        for place, member in enumerate(self._members):
            heard = [outcome for outcome in outcomes if self._reads(place, outcome.sequence.id)]
            if heard:
                member.drafter.observe(heard)
        self._beams.learn(outcomes)
        if self._round.asked:
            shown = time.perf_counter()
            for outcome in outcomes:
                followed = self._followed.get(outcome.sequence.id)
                if followed is not None and outcome.committed:
                    followed.judge(outcome.committed)
            self._round.own_seconds += time.perf_counter() - shown
        if outcomes and outcomes[0].pass_rows:
            if all([outcome.committed for outcome in outcomes]):
                self._time(outcomes, start)
            else:
                self.costs.read_prompts(outcomes[0].pass_rows, outcomes[0].pass_seconds)

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        followed = [self._followed[sequence.id] for sequence in sequences]
        if len(followed) < len(self._followed):
            return None
        lanes = [
            Lane(
                member,
                [each.standings[place] for each in followed],
                [each.rates[place] for each in followed],
                [each.learned[place] for each in followed],
                [i for i, sequence in enumerate(sequences) if self._reads(place, sequence.id)],
            )
            for place, member in enumerate(self._members)
            if self._keeps(member)
        ]
        planned = self.parts.stretch([each.view for each in followed], limits, lanes, self.costs)
        if planned is None:
            return None

        def learn(rounds: Sequence[RoundRecord]) -> None:
            planned.learn(rounds)
            self._merits = self.parts.credits(self._members)

        merits = self.parts.credits([lane.member for lane in lanes])
        return StretchDrafting(planned.guessers, planned.cut(merits), learn)

    def end(self, sequence_id: int) -> None:
        if self._followed.pop(sequence_id, None) is not None:
            for member in self._members:
                member.drafter.end(sequence_id)

    def _keeps(self, member: Member) -> bool:
        """Whether the drafter follows anything of what is decoded."""
        return len(self._followed) <= _FEW or not member.reads_along

    def _reads(self, place: int, sequence_id: int) -> bool:
        """Whether one drafter follows a sequence. One that missed rounds of it reads on after them."""
        followed, member = self._followed.get(sequence_id), self._members[place]
        if followed is None or not self._keeps(member):
            return False
        followed.is_read[place] = reads = member.follows(followed.is_read[place], len(self._followed))
        return reads

    def _ask(self, place: int, member: Member, followed: Sequence[Followed], budgets: Sequence[DraftBudget]) -> bool:
        """Let one drafter guess for the sequences where it pays, and for one more if a probe is due."""
        known: list[int] = []
        new: list[int] = []
        resting: list[int] = []
        for i, each in enumerate(followed):
            if budgets[i].nodes and budgets[i].depth and self._reads(place, each.view.id):
                standing = each.standings[place]
                if member.rests(standing, len(followed)) or (not standing.asked and len(new) == _STRANGERS):
                    resting.append(i)
                else:
                    (known if standing.asked else new).append(i)
        if known and not new and member.loses([followed[i].standings[place] for i in known], len(followed)):
            known, resting = [], [*resting, *known]
        asking = _Asking(member, bool(resting), len(known))
        asked = len(known) + len(new)
        if known:
            asking.seconds = self._question(place, known, followed, budgets)
        if new:
            asking.first_seconds = self._question(place, new, followed, budgets) / len(new)
        # Passes that read prompts judge no drafter, so a probe would tell nothing.
        if resting and member.probe_is_due and not budgets[0].prompt_rows:
            probed = resting[member.probes % len(resting)]
            member.probes += 1
            asking.probe_seconds = self._question(place, [probed], followed, budgets)
            asked += 1
        if asked or resting:
            self._round.askings.append(asking)
            self._round.asked += asked
        return bool(asked)

    def _question(
        self, place: int, asked: Sequence[int], followed: Sequence[Followed], budgets: Sequence[DraftBudget]
    ) -> float:
        """Let one drafter guess for some of the sequences; returns the seconds that it took."""
        start = time.perf_counter()
        drafter = self._members[place].drafter
        trees = drafter.propose([followed[i].view for i in asked], [budgets[i] for i in asked])
        for i, tree in zip(asked, trees, strict=True):
            followed[i].guesses.append((place, Guesses.of(tree)))
            followed[i].standings[place].asked = True
        seconds = time.perf_counter() - start
        self._round.own_seconds -= seconds
        return seconds

    def _cut(self, followed: Sequence[Followed], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """Trees of as many nodes as pay, the likeliest of all sequences."""
        ranked: list[tuple[float, int, int]] = []
        merge(followed, self._members)
        for i, each in enumerate(followed):
            merged = each.merged
            if beam_of(each.view) is None:
                ranked += [(-merged.reach[node], i, node) for node in merged.ranked(budgets[i].nodes)]
        if len(followed) > 1:
            # The sort is stable and reach falls along every path, so a parent stays before its child.
            ranked.sort(key=itemgetter(0))
        share = BESIDE_PROMPTS if budgets[0].prompt_rows else 1.0
        reach = [-negative * share for negative, _, _ in ranked]
        if budgets[0].prompt_rows:
            count = self.costs.nodes_beside_prompts(len(self._followed), reach)
        else:
            context = sum([len(each.view.tokens) for each in followed]) / len(followed)
            self._round.size = size = self.costs.size(len(followed), reach, context)
            count = size.nodes
        chosen: list[list[int]] = [[] for _ in followed]
        beams = chosen_nodes(
            [each.view for each in followed],
            budgets,
            [each.merged.tokens for each in followed],
            [each.merged.parents for each in followed],
            [[math.log(max(reach, _IMPOSSIBLE)) for reach in each.merged.reach] for each in followed],
        )
        for i, nodes in beams.items():
            chosen[i] = nodes
        for _, i, node in ranked[:count]:
            chosen[i].append(node)
        if self._round.size is not None and self._round.size.seconds:
            self._credit(followed, chosen, self._round.size)
        return [each.merged.tree(nodes) for each, nodes in zip(followed, chosen, strict=True)]

    def _credit(self, followed: Sequence[Followed], chosen: Sequence[list[int]], size: TreeSize) -> None:
        """Credit every verified guess to the cheapest drafter that made it."""
        merits, members = self._merits, self._members
        for each, nodes in zip(followed, chosen, strict=True):
            if beam_of(each.view) is not None:
                continue
            gains, rows = [0.0] * len(members), [0] * len(members)
            for node in nodes:
                place = merits[each.merged.owners[node]]
                gains[place] += each.merged.reach[node]
                rows[place] += 1
            for place, _ in each.guesses:
                worth = size.worth(gains[place], rows[place])
                self._round.brought.append((members[place], each.standings[place], worth))

    def _time(self, outcomes: Sequence[RoundOutcome], start: float) -> None:
        """Learn what the round cost."""
        first, now = outcomes[0], self._round
        row_keys = sum([len(outcome.row_tokens) * outcome.first_position for outcome in outcomes])
        own = now.own_seconds / now.asked if now.asked else 0.0
        for asking in now.askings:
            member = asking.member
            # Verifying a tree takes about as long again as planning it.
            beside = 2 * own + (first.signal_seconds / len(outcomes) if member.drafter.needs.top_ids else 0.0)
            if asking.known:
                member.cost.add(asking.known, asking.seconds + asking.known * beside)
            if asking.first_seconds:
                member.first_cost.add(asking.first_seconds)
            if asking.rested:
                probe_seconds = asking.probe_seconds + beside if asking.probe_seconds else 0.0
                member.rested(probe_seconds, self.costs.round_seconds)
        for member, standing, worth in now.brought:
            member.judge(standing, worth, len(outcomes))
        if now.asked:
            self._merits = self.parts.credits(self._members)
        between = max(0.0, start - self._proposed_at - first.pass_seconds - first.signal_seconds)
        other = between + time.perf_counter() - start
        self.costs.add(first.pass_rows, first.pass_seconds, row_keys, other, now.size, first.pass_experts)


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
