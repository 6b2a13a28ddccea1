"""How many distinct experts passes are expected to call, and what follows for their costs."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from headstart.drafting.planning.expert_calls import ExpertCalls, at_random
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.drafting.planning.round_costs import RoundCosts

COUNT, USED = 128, 8


@pytest.mark.parametrize(("count", "used", "rows"), [(4, 2, 3), (5, 1, 3), (4, 4, 2), (5, 3, 2)])
def test_rows_that_choose_at_random_call_what_counting_all_choices_says(count: int, used: int, rows: int) -> None:
    choices = [set(choice) for choice in combinations(range(count), used)]
    every = [len(set().union(*chosen)) for chosen in product(choices, repeat=rows)]
    assert at_random(count, used, rows) == pytest.approx(np.mean(every))
    assert ExpertCalls(count, used).curve(rows)[-1] == pytest.approx(np.mean(every))


def test_it_converges_to_the_curve_of_rows_that_share_experts() -> None:
    """Of a text whose rows choose from fewer and fewer new experts; with noise, and sizes seen by chance."""

    def curve(rows: int) -> float:
        return USED + 7.0 * np.log2(rows)

    rng, calls = np.random.default_rng(5), ExpertCalls(COUNT, USED)
    for _ in range(3000):
        rows = int(rng.integers(1, 65))
        calls.add(rows, curve(rows) + rng.normal(0, 2))
    for rows in (1, 2, 4, 8, 16, 32, 50):
        assert calls.expected(rows) == pytest.approx(curve(rows), rel=0.1)


def test_what_passes_of_one_size_show_is_believed_of_others_until_they_are_seen() -> None:
    calls = ExpertCalls(COUNT, USED)
    for _ in range(20):
        calls.add(8, USED + 0.5 * (at_random(COUNT, USED, 8) - USED))
    assert calls.expected(4) == pytest.approx(USED + 0.5 * (at_random(COUNT, USED, 4) - USED))
    assert calls.expected(32) == pytest.approx(USED + 0.5 * (at_random(COUNT, USED, 32) - USED))


def test_texts_that_change_are_followed() -> None:
    calls = ExpertCalls(COUNT, USED)
    for called in [20.0] * 500 + [40.0] * 500:
        calls.add(8, called)
    assert calls.expected(8) == pytest.approx(40.0, rel=0.01)


def test_more_rows_never_call_fewer_and_none_call_more_than_there_are() -> None:
    calls = ExpertCalls(8, 2)
    for rows, called in ((2, 4.0), (4, 3.0), (16, 8.0), (32, 8.0)):
        calls.add(rows, called)
    curve = calls.curve(64)
    assert all(a <= b for a, b in pairwise(curve))
    assert curve[0] == 2.0
    assert max(curve) <= 8.0


def test_rows_that_all_go_through_every_expert_call_them_all() -> None:
    calls = ExpertCalls(4, 4)
    calls.add(3, 4.0)
    assert calls.curve(5) == [4.0] * 5


def of_experts(rng: np.random.Generator, rows: int) -> float:
    """A pass's distinct experts: a text of any closeness."""
    return USED + float(rng.uniform(0.4, 0.9)) * (at_random(COUNT, USED, rows) - USED)


def test_what_an_expert_takes_is_told_from_passes_of_equally_many_rows() -> None:
    costs, rng = PassCosts(ExpertCalls(COUNT, USED)), np.random.default_rng(1)
    for _ in range(600):
        rows = int(rng.choice([1, 4, 8]))
        experts = of_experts(rng, rows)
        costs.add(rows, 1.0 + 0.02 * experts, experts=experts)
    assert costs.per_expert == pytest.approx(0.02, rel=0.1)


def test_passes_larger_than_any_timed_are_believed_to_cost_the_experts_that_they_call() -> None:
    """Where a dense model's next rows are believed to cost hardly anything."""
    rng = np.random.default_rng(1)
    costs, dense = PassCosts(ExpertCalls(COUNT, USED)), PassCosts()
    costs.begin_per_expert(0.02)
    for _ in range(300):
        rows = int(rng.choice([1, 2, 4, 8]))
        experts = at_random(COUNT, USED, rows)
        for each in (costs, dense):
            each.add(rows, 1.0 + 0.02 * experts, experts=experts)
    true = [1.0 + 0.02 * at_random(COUNT, USED, rows) for rows in range(1, 13)]
    assert costs.seconds(1, 12) == pytest.approx(true, rel=0.06)
    assert abs(costs.seconds(12, 12)[0] - true[-1]) < abs(dense.seconds(12, 12)[0] - true[-1]) / 2


def test_a_text_that_calls_fewer_experts_makes_passes_cheaper_of_sizes_that_it_was_not_timed_at() -> None:
    costs = PassCosts(ExpertCalls(COUNT, USED))
    costs.begin_per_expert(0.02)
    for rows in (1, 4, 8, 16):
        experts = at_random(COUNT, USED, rows)
        costs.add(rows, 1.0 + 0.02 * experts, experts=experts)
    before = costs.seconds(8, 8)[0]
    for _ in range(100):
        experts = USED + 0.3 * (at_random(COUNT, USED, 4) - USED)
        costs.add(4, 1.0 + 0.02 * experts, experts=experts)
    assert costs.seconds(4, 4)[0] == pytest.approx(1.0 + 0.02 * experts, rel=0.02)
    assert costs.seconds(8, 8)[0] < 0.95 * before


def test_an_expert_never_takes_more_than_passes_did() -> None:
    costs = PassCosts(ExpertCalls(COUNT, USED))
    costs.begin_per_expert(100.0)
    for rows in (1, 8):
        costs.add(rows, 2.0, experts=at_random(COUNT, USED, rows))
    assert all(seconds <= 2.01 for seconds in costs.seconds(1, 8))


def test_a_model_without_experts_costs_what_its_rows_do() -> None:
    told, untold = PassCosts(), PassCosts()
    for rows in (1, 4, 16) * 20:
        told.add(rows, 1.0 + rows, 100.0 * rows, experts=float(rows))
        untold.add(rows, 1.0 + rows, 100.0 * rows)
    assert told.seconds(1, 20, 50.0) == untold.seconds(1, 20, 50.0)
    assert told.per_expert == 0.0


@pytest.mark.parametrize("per_expert", [0.01, 0.03, 0.2])
def test_fewer_guesses_are_verified_where_their_rows_call_further_experts(per_expert: float) -> None:
    reach = [0.8**level for level in range(1, 13)]
    dense, mixed = RoundCosts(), RoundCosts(ExpertCalls(COUNT, USED))
    mixed.passes.begin_per_expert(per_expert)
    for rows in (1, 2, 4, 8):
        dense.add(rows, 1.0, 0.0, 0.0)
        experts = at_random(COUNT, USED, rows)
        mixed.add(rows, 1.0 + per_expert * experts, 0.0, 0.0, experts=experts)
    many, few = dense.size(1, reach, 0.0).nodes, mixed.size(1, reach, 0.0).nodes
    assert few < many
    seconds = [1.0 + per_expert * at_random(COUNT, USED, rows) for rows in range(1, 13)]
    pace = [(1 + sum(reach[:nodes])) / taken for nodes, taken in enumerate(seconds)]
    assert pace[few] == pytest.approx(max(pace), rel=0.02)
