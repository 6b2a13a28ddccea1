"""How deep and wide trees of beams are planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from drafting_toys import ToySequence

from headstart.drafting.base import BeamView, DraftBudget, RoundOutcome
from headstart.drafting.planning.beam_plans import BeamPlans
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.passes.draft_tree import DraftTree

BEAMS = 4


def costs(per_row: float) -> RoundCosts:
    known = RoundCosts()
    for count in range(1, 64):
        known.add(count, 1.0 + per_row * (count - 1), 0.0, 0.0)
    return known


def beams() -> list[ToySequence]:
    made = [ToySequence(i, [1, 2, 3]) for i in range(BEAMS)]
    for sequence in made:
        sequence.beam = BeamView(7, BEAMS, -1.0)  # type: ignore[attr-defined]
    return made


BUDGETS = [DraftBudget(12, 9, group_nodes=48)] * BEAMS


def one_round(plans: BeamPlans, said: int) -> DraftBudget:
    """A round in which so many tokens are said; the budget that was planned for it."""
    sequences = beams()
    planned = plans.budgets(sequences, BUDGETS)
    assert len(set(planned)) == 1
    plans.drafted(0.0, {7: planned[0].depth})
    rows = np.zeros(1, np.int32)
    outcomes = [
        RoundOutcome(each, 2, rows, DraftTree.empty(), committed=(5,) * min(said, planned[0].depth + 1))
        for each in sequences
    ]
    plans.learn(outcomes)
    return planned[0]


def test_levels_that_hold_are_made_more_and_those_that_do_not_fewer() -> None:
    plans = BeamPlans(costs(0.02))
    first = one_round(plans, 99)
    for _ in range(40):
        last = one_round(plans, 99)
    assert last.depth > first.depth > 0
    assert last.group_nodes == last.depth * last.level_nodes <= 48
    for _ in range(120):
        last = one_round(plans, 1)
    assert last.depth == 0


def test_rows_that_cost_nothing_leave_all_levels_of_the_widest() -> None:
    planned = one_round(BeamPlans(costs(0.0)), 99)
    assert planned.level_nodes * planned.depth >= 36


def test_rows_that_cost_a_pass_leave_none_and_are_tried_again() -> None:
    plans = BeamPlans(costs(1.0))
    depths = [one_round(plans, 1).depth for _ in range(60)]
    assert depths[0] == 0
    assert sum(depth > 0 for depth in depths) == 2


def test_before_anything_was_timed_all_is_guessed() -> None:
    assert one_round(BeamPlans(RoundCosts()), 1).group_nodes == 48


def test_others_keep_their_budgets() -> None:
    plans = BeamPlans(costs(1.0))
    own = DraftBudget(3, 2)
    assert plans.budgets([ToySequence(1, [1])], [own]) == [own]
    nothing = replace(BUDGETS[0], nodes=0, depth=0, group_nodes=0)
    assert plans.budgets(beams(), [nothing] * BEAMS)[0].group_nodes == 0
