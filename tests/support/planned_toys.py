"""``auto`` over drafters that know what will be said, in time that passes only where something says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from drafting_toys import Ranking, ToySequence, check_tree, read_prompt, second_order_target, verify_greedily

from headstart.drafting.base import DraftBudget, Drafter, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.allowances import Allowance, Load, PlainRounds, Safeguard
from headstart.drafting.planning.members import Brought, Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.passes.draft_tree import DraftTree

VOCAB = 12
BUDGET = DraftBudget(nodes=31, depth=31)
PREDICTABLE = second_order_target(VOCAB)
Cost = Callable[[int], float]
"""Seconds of a pass by its rows."""


class _Second(PlainRounds):
    def seconds(self, load: Load) -> float:
        return 1.0


class Unguarded(Safeguard):
    """Lets everybody guess from the first round on, whatever it takes on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = _Second()

    def allows(self, load: Load) -> bool:
        return True

    def speculated(self, load: Load, *measured: float) -> None: ...

    def charge(self, load: Load, seconds: float) -> None: ...


class Eager(Member):
    """Is always asked, and told."""

    def asks(self, own: Allowance, load: Load) -> bool:
        return True

    def settle(self, load: Load, brought: Sequence[Brought], *seconds: float) -> None: ...

    def read(self, load: Load, *seconds: float) -> None: ...

    def heard(self, load: Load, *seconds: float, was_asked: bool = False) -> None: ...


def eager_planner(context: DraftContext, options: Mapping[str, object]) -> AutoDrafter:
    """``auto`` that asks its drafters in every round: on toys a pass takes less than a question."""
    parts = replace(AutoDrafter.parts, member=Eager, safeguard=Unguarded)
    made: AutoDrafter = type("Eager", (AutoDrafter,), {"parts": parts})(context, AutoDrafter.Options(**options))
    return made


@dataclass
class Clock:
    """Time that passes only where something says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Oracle:
    """Knows what the target will say, a chain of so many tokens, at a price in seconds for every question."""

    target: Ranking
    length: int
    price: float
    clock: Clock
    needs: TargetSignals = field(default_factory=TargetSignals)
    right: bool = True
    lengths: int = 0
    """Of a draft so many guesses are right, in turn none, one, up to one less than this; 0: all of them."""
    hearing: float = 0.0
    """Seconds that it takes to be shown a round or a prompt."""
    asked: int = 0
    min_probabilities: list[float | None] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)

    def begin(self, sequence) -> None: ...

    def observe(self, outcomes) -> None:
        self.clock.now += self.hearing
        self.heard |= {outcome.sequence.id for outcome in outcomes}

    def end(self, sequence_id) -> None: ...

    def propose(self, sequences, budgets) -> list[DraftTree]:
        self.asked += len(sequences)
        self.min_probabilities += [budget.min_probability for budget in budgets]
        self.clock.now += self.price * len(sequences)
        trees = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            context = list(sequence.tokens)
            for depth in range(min(self.length, budget.nodes)):
                right = self.right and (not self.lengths or depth < self.asked % self.lengths)
                context.append(int(self.target(context)[0 if right else 1]))
            trees.append(DraftTree.chain(context[len(sequence.tokens) :]))
        return trees


def with_oracles(
    monkeypatch: pytest.MonkeyPatch, kind: type[Oracle] = Oracle, **oracles: tuple[int, float]
) -> tuple[Drafter, dict[str, Oracle]]:
    """``auto`` over oracles of given lengths and prices. Nothing else takes any time but passes."""
    clock = Clock()
    monkeypatch.setattr(AutoDrafter, "parts", PlannerParts(clock=clock))
    built = {name: kind(PREDICTABLE, length, price, clock) for name, (length, price) in oracles.items()}
    monkeypatch.setattr(
        "headstart.drafting.methods.auto.drafter.create_drafter", lambda name, context, **options: built[name]
    )
    return AutoDrafter(DraftContext(VOCAB), AutoDrafter.Options("+".join(built))), built


def begin(drafter: Drafter, number: int = 1, speculation: SpeculationParams | None = None) -> ToySequence:
    sequence = ToySequence(number, [1, 2, 3, 4], speculation=speculation or SpeculationParams())
    drafter.begin(sequence)
    drafter.observe([read_prompt(sequence)])
    return sequence


def decode(
    drafter: Drafter, sequences: Sequence[ToySequence], target: Ranking, cost: Cost, rounds: int
) -> tuple[list[int], float]:
    """Nodes verified in each round, and the tokens gained in the time of one plain pass; questions take none."""
    before = sum(len(sequence.tokens) for sequence in sequences)
    nodes, seconds = [], 0.0
    for _ in range(rounds):
        trees = drafter.propose(sequences, [BUDGET] * len(sequences))
        for tree in trees:
            check_tree(tree, BUDGET, VOCAB)
        rows = len(sequences) + sum(map(len, trees))
        outcomes = [
            replace(
                verify_greedily(sequence, tree, target, drafter.needs.top_ids), pass_rows=rows, pass_seconds=cost(rows)
            )
            for sequence, tree in zip(sequences, trees, strict=True)
        ]
        drafter.observe(outcomes)
        seconds += cost(rows)
        nodes.append(rows - len(sequences))
    said = sum(len(sequence.tokens) for sequence in sequences) - before
    return nodes, said / seconds * cost(len(sequences)) / len(sequences)


def unpredictable(context: list[int]) -> np.ndarray:
    return np.random.default_rng([1, len(context), *context[-20:]]).permutation(VOCAB)
