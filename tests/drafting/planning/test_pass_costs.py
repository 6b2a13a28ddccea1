from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headstart.drafting.planning import constants as c
from headstart.drafting.planning.pass_costs import PassCosts, Recent


def costs_of(curve: dict[int, float]) -> PassCosts:
    costs = PassCosts()
    for rows, seconds in curve.items():
        costs.add(rows, seconds)
    return costs


def per_key(costs: PassCosts) -> float:
    """Seconds that one more token of context adds to a row."""
    return (costs.seconds(1, 1, 1e6)[0] - costs.seconds(1, 1)[0]) / 1e6


def test_a_step_never_taken_is_believed_to_lie_between_its_neighbours() -> None:
    seconds = costs_of({1: 1.0, 16: 2.5}).seconds(1, 17)
    assert seconds[:8] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    assert seconds[8:16] == pytest.approx([1.9, 1.9, 2.1, 2.1, 2.3, 2.3, 2.5, 2.5])


def test_larger_passes_than_any_known_are_believed_to_cost_little_more_but_only_so_large() -> None:
    seconds = costs_of({8: 2.0}).seconds(1, 100)
    assert len(seconds) == 12
    assert set(seconds[:8]) == {2.0}
    assert all(a < b for a, b in pairwise(seconds[7:]))
    assert seconds[11] < 2.2
    assert len(costs_of({1: 1.0}).seconds(1, 100)) == 5


def test_where_the_last_rows_were_dear_the_next_are_not_believed_to_cost_nothing() -> None:
    assert costs_of({16: 16.0, 24: 24.0}).seconds(28, 28)[0] == pytest.approx(26.0)


def test_a_step_of_the_kernels_shows() -> None:
    costs = costs_of({1: 1.0, 16: 1.0, 20: 2.0, 32: 2.0})
    assert set(costs.seconds(1, 16)) == {1.0}
    assert set(costs.seconds(17, 32)) == {2.0}


def test_a_single_disturbance_leaves_no_trace() -> None:
    costs = PassCosts()
    for seconds in (1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0):
        costs.add(1, seconds)
    assert costs.seconds(1, 1) == [1.0]


def test_more_rows_never_cost_less() -> None:
    seconds = costs_of({1: 4.0, 8: 1.0, 16: 3.0}).seconds(1, 16)
    assert seconds == sorted(seconds)
    assert seconds[0] == 1.0


def test_costs_follow_a_lasting_change() -> None:
    costs = PassCosts()
    for seconds in [1.0] * 50 + [2.0] * 16:
        costs.add(8, seconds)
        found = costs.seconds(8, 8)
    assert found == [2.0]


def test_what_is_old_is_forgotten() -> None:
    costs = costs_of({16: 9.0})
    for _ in range(5000):
        costs.add(1, 1.0)
    assert len(costs.seconds(1, 100)) == 5
    costs.add(16, 2.0)
    assert costs.seconds(16, 16) == [2.0]


def test_one_more_row_is_tried_again_where_it_was_not_timed_lately() -> None:
    """A disturbed trial would keep it out for ever."""
    costs = costs_of({1: 1.0, 2: 3.0, 4: 3.5})
    assert costs.seconds(1, 4) == [1.0, 3.0, 3.25, 3.5]
    for _ in range(200):
        costs.add(1, 1.0)
    assert costs.seconds(1, 4) == [1.0, 1.0, 3.25, 3.5]
    for _ in range(8):
        costs.add(2, 1.5)
    assert costs.seconds(1, 2) == [1.0, 1.5]


def test_rows_that_seem_dear_by_one_timing_are_tried_again() -> None:
    costs = PassCosts()
    costs.add(4, 100.0)  # it was disturbed
    for _ in range(c.RENEWED + 2):
        costs.add(1, 10.0)
        costs.add(2, 11.0)
    assert costs.seconds(1, 4)[:3] == [10.0, 11.0, 11.0]
    for _ in range(c.TRUSTED):
        costs.add(3, 12.0)
    tried = costs.seconds(1, 4)
    assert tried[2] == tried[3], "the next step"
    for _ in range(c.REDRAWN_EVERY):
        costs.add(4, 13.0)
    assert costs.seconds(1, 4) == [10.0, 11.0, 12.0, 13.0]


def test_of_two_timings_the_lower_counts() -> None:
    costs = costs_of({4: 9.0})
    costs.add(4, 2.0)
    assert costs.seconds(4, 4) == [2.0]


def test_the_share_of_the_context_is_told_from_that_of_the_rows() -> None:
    costs = PassCosts()
    rng = np.random.default_rng(3)
    for _ in range(600):
        rows, context = int(rng.choice([1, 4, 8])), int(rng.integers(100, 2000))
        costs.add(rows, 1.0 + 0.1 * rows + 1e-4 * rows * context, rows * context)
    assert per_key(costs) == pytest.approx(1e-4, rel=0.15)
    for context in (100.0, 1000.0, 2000.0):
        one, eight = (costs.seconds(rows, rows, context)[0] for rows in (1, 8))
        assert one == pytest.approx(1.1 + 1e-4 * context, rel=0.1)
        assert eight == pytest.approx(1.8 + 8e-4 * context, rel=0.1)


def test_times_that_do_not_depend_on_the_context_give_it_no_share() -> None:
    costs = PassCosts()
    rng = np.random.default_rng(3)
    for _ in range(600):
        costs.add(1, float(rng.normal(1.0, 0.05)), float(rng.integers(100, 2000)))
    assert per_key(costs) * 1000 < 0.02


def test_the_median_of_the_recent_past() -> None:
    recent = Recent()
    for value in [100.0] * 9 + [1.0] * 4 + [2.0] * 5:
        recent.add(value)
    assert recent.value == 2.0


def test_the_first_pass_over_a_long_context_tells_what_it_costs() -> None:
    costs = costs_of({1: 0.01, 8: 0.012})
    for _ in range(4):
        costs.add(1, 0.01 + 2e-7 * 16000, 16000)
    assert per_key(costs) == pytest.approx(2e-7, rel=0.1)
    assert costs.seconds(8, 8, context=16000.0)[0] == pytest.approx(0.012 + 8 * 16000 * 2e-7, rel=0.1)
