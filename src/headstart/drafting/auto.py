"""The planner at work: several drafters in one tree, as many rows as pay, none where speculation would lose.

A round costs draft + target(rows) + overhead and yields one token and the guesses that are accepted. All three
costs are measured while decoding; acceptance is learned by drafter, grade and sequence. Each round the nodes of all
sequences compete in one list, the likeliest first, which is cut where expected tokens per time are highest: the tree
form of Theorem 3.8 (Leviathan et al. 2023) with measured costs (methods-exact C).

How many rows pay depends on clocks, so trees differ from run to run. What is said does not: all guesses are point
masses (drafters that draw are asked to share the target's noise), so the target alone decides each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headstart.draft_tree import DraftTree
from headstart.drafting.base import (
    DraftBudget,
    Drafter,
    RoundOutcome,
    SequenceView,
    SpeculationParams,
    TargetSignals,
    bytes_of,
)
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.merged import Guesses, GuessRates, MergedGuesses, merge
from headstart.drafting.options import require
from headstart.drafting.pass_costs import PassCosts, Recent
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.verification.base import VerifyRule

_UNTIMED_NODES = 15
"""Nodes of a tree, over all sequences, while nothing is known of the costs: with the root one tile of 16 rows."""
_PLAIN_EVERY = 256
"""Passes after which plain decoding is timed again: one pass in so many is plain where guessing pays."""
_PATIENCE, _LONGEST_PATIENCE = 64, 512
"""Rounds after which guessing is tried again where it does not pay: the first time, and at most. Each failure doubles
them."""
_TRIAL_COST = 1.5
"""What such a round may cost, in plain ones (one guess is always tried)."""
_LONGEST_REST = 16
"""Rounds for which the drafters are not asked, at most, after their guesses were not worth a row."""
_CHEAP_DRAFT = 0.02
"""Drafters that take no more of a pass than this are always asked: even unverified, a first guess is judged by what
the target says."""
_SHARED_WEIGHT, _SHARED_MEMORY = 2.0, 1000.0
_OWN_WEIGHT, _OWN_MEMORY = 4.0, 40.0


@dataclass(frozen=True)
class AutoOptions:
    drafters: str = "suffix+recycling"
    """Who guesses, by name with + between them."""
    drafter_options: dict[str, object] = field(default_factory=dict)
    """Options of theirs, a dictionary for each name."""

    def __post_init__(self) -> None:
        names = self.names
        require(all(names), f"drafters is {self.drafters!r}; give names with + between them, like 'suffix+recycling'.")
        require(len(set(names)) == len(names), f"drafters is {self.drafters!r}; name each drafter once.")
        require("auto" not in names, f"drafters is {self.drafters!r}; auto cannot plan for itself, leave it out.")
        for name, options in self.drafter_options.items():
            require(
                name in names and isinstance(options, Mapping),
                f"drafter_options has {name!r}: {options!r}; give a dictionary of options for one of {self.drafters}.",
            )

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.drafters.split("+")]

    def of(self, name: str) -> dict[str, object]:
        """The options of one of the drafters."""
        options = self.drafter_options.get(name, {})
        assert isinstance(options, Mapping)
        return dict(options)


@dataclass
class CoupledSequence:
    """A sequence as the drafters see it: asked to share the target's noise, so that they guess point masses."""

    outer: SequenceView
    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    speculation: SpeculationParams
    noise: SequenceNoise

    @classmethod
    def of(cls, sequence: SequenceView) -> CoupledSequence:
        return cls(
            sequence,
            sequence.id,
            sequence.tokens,
            sequence.prompt_length,
            sequence.params,
            replace(sequence.speculation, verify=VerifyRule.COUPLED),
            sequence.noise,
        )


@dataclass
class _Member:
    """One of the drafters, and what is known of its guesses."""

    drafter: Drafter
    rates: ScopedMemory[GuessRates] = field(
        default_factory=lambda: ScopedMemory(lambda: GuessRates(None, _SHARED_WEIGHT, _SHARED_MEMORY))
    )


@dataclass
class _Followed:
    """A sequence that is being decoded."""

    view: CoupledSequence
    rates: list[GuessRates]
    """[member]"""
    guesses: list[Guesses] = field(default_factory=list)
    """[member] as last proposed; empty: nobody was asked."""


class AutoDrafter:
    """Merges the guesses of several drafters and verifies as many of them as pay."""

    Options = AutoOptions

    def __init__(self, context: DraftContext, options: AutoOptions) -> None:
        # Imported here: the registry is above every method.
        from headstart.drafting.registry import create_drafter

        self._scope_of = context.scope_of
        inner = replace(context, scope_of=_scope_of_outer(context))
        self._members = [_Member(create_drafter(name, inner, **options.of(name))) for name in options.names]
        needs = [member.drafter.needs for member in self._members]
        self.needs = TargetSignals(
            taps=tuple(sorted({tap for need in needs for tap in need.taps})),
            top_ids=max(need.top_ids for need in needs),
        )
        self._followed: dict[int, _Followed] = {}
        self.costs = PassCosts()
        """What passes were seen to cost."""
        self._draft_seconds, self._other_seconds = Recent(), Recent()
        self._proposed_at = self._asked_seconds = 0.0
        self._declined = False
        self._rest = self._resting = 0
        self._silent, self._patience = 0, _PATIENCE

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(member.drafter) for member in self._members)

    def begin(self, sequence: SequenceView) -> None:
        view, scope = CoupledSequence.of(sequence), self._scope_of(sequence)
        rates = [GuessRates(member.rates[scope], _OWN_WEIGHT, _OWN_MEMORY) for member in self._members]
        self._followed[sequence.id] = _Followed(view, rates)
        for member in self._members:
            member.drafter.begin(view)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        start = time.perf_counter()
        self._declined = False
        followed = [self._followed[sequence.id] for sequence in sequences]
        if self._resting or not any(budget.nodes and budget.depth for budget in budgets):
            self._asked_seconds = 0.0
            for each in followed:
                each.guesses = []
            trees = [DraftTree.empty()] * len(followed)
        else:
            merged = self._ask(followed, budgets)
            self._asked_seconds = time.perf_counter() - start
            trees = self._cut(merged, budgets)
        self._proposed_at = time.perf_counter()
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        start = time.perf_counter()
        outcomes = [outcome for outcome in outcomes if outcome.sequence.id in self._followed]
        seen = [replace(outcome, sequence=self._followed[outcome.sequence.id].view) for outcome in outcomes]
        for member in self._members:
            member.drafter.observe(seen)
        for outcome in outcomes:
            self._judge(outcome)
        # A pass that also read prompts says nothing of rounds.
        if outcomes and outcomes[0].pass_rows and all(outcome.committed for outcome in outcomes):
            self._time(outcomes, start)

    def end(self, sequence_id: int) -> None:
        if self._followed.pop(sequence_id, None) is not None:
            for member in self._members:
                member.drafter.end(sequence_id)

    def _ask(self, followed: Sequence[_Followed], budgets: Sequence[DraftBudget]) -> list[MergedGuesses]:
        views = [each.view for each in followed]
        proposals = [member.drafter.propose(views, budgets) for member in self._members]
        for each, trees in zip(followed, zip(*proposals, strict=True), strict=True):
            each.guesses = [Guesses.of(tree) for tree in trees]
        return [merge(list(zip(each.guesses, each.rates, strict=True))) for each in followed]

    def _cut(self, merged: Sequence[MergedGuesses], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """As many nodes as pay, the likeliest of all sequences together."""
        kept = [guesses.best(budget.nodes) for guesses, budget in zip(merged, budgets, strict=True)]
        reach = np.concatenate([guesses.reach[nodes] for guesses, nodes in zip(merged, kept, strict=True)])
        order = np.argsort(-reach, kind="stable")
        count = self._size(len(merged), reach[order])
        chosen = np.zeros(len(reach), dtype=bool)
        chosen[order[:count]] = True
        trees, first = [], 0
        for guesses, nodes in zip(merged, kept, strict=True):
            trees.append(guesses.tree(nodes[chosen[first : first + len(nodes)]]))
            first += len(nodes)
        return trees

    def _size(self, roots: int, reach: NDArray[np.float64]) -> int:
        """How many nodes to verify, of those whose reach is given in falling order."""
        if not self.costs.known:
            return min(len(reach), _UNTIMED_NODES)
        if self.costs.stale(roots, _PLAIN_EVERY):
            return 0
        tokens = roots + np.concatenate([[0.0], np.cumsum(reach)])
        seconds = self.costs.seconds(roots, roots + len(reach)) + self._other_seconds.value
        guessing = seconds + self._draft_seconds.value
        count = int(np.argmax(tokens / guessing))
        if tokens[count] / guessing[count] > roots / seconds[0]:
            return count
        self._declined = True
        if self._silent < self._patience:
            return 0
        affordable = int(np.searchsorted(seconds, _TRIAL_COST * seconds[0], side="right")) - 1
        return min(max(affordable, 1), len(reach))

    def _judge(self, outcome: RoundOutcome) -> None:
        followed = self._followed[outcome.sequence.id]
        if outcome.committed:
            for guesses, rates in zip(followed.guesses, followed.rates, strict=False):
                guesses.judge(outcome.committed, rates)
            followed.guesses = []

    def _time(self, outcomes: Sequence[RoundOutcome], start: float) -> None:
        """Learn what the round cost, and whether to ask the drafters in the next one."""
        rows, seconds = outcomes[0].pass_rows, outcomes[0].pass_seconds
        self.costs.add(rows, seconds)
        self._silent = 0 if rows > len(outcomes) else self._silent + 1
        if self._resting:
            self._resting -= 1
        elif self._asked_seconds:
            self._draft_seconds.add(self._asked_seconds)
            dear = self._draft_seconds.value > _CHEAP_DRAFT * seconds
            self._rest = min(2 * self._rest or 1, _LONGEST_REST) if self._declined and dear else 0
            self._resting = self._rest
            if not self._declined:
                self._patience = _PATIENCE
            elif not self._silent:
                self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
        between = max(0.0, start - self._proposed_at - seconds)
        self._other_seconds.add(between + time.perf_counter() - start)


def _scope_of_outer(context: DraftContext) -> Callable[[SequenceView], Hashable]:
    return lambda view: context.scope_of(view.outer if isinstance(view, CoupledSequence) else view)
