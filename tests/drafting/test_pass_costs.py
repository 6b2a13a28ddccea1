from __future__ import annotations

from headstart.drafting.pass_costs import PassCosts, Recent


def costs_of(curve: dict[int, float]) -> PassCosts:
    costs = PassCosts()
    for rows, seconds in curve.items():
        costs.add(rows, seconds)
    return costs


def test_a_step_never_taken_is_believed_to_cost_what_the_one_below_does() -> None:
    seconds = costs_of({1: 1.0, 16: 2.5}).seconds(1, 3000)
    assert set(seconds[:12]) == {1.0}
    assert set(seconds[12:]) == {2.5}
    assert set(costs_of({4: 2.0}).seconds(1, 4)) == {2.0}


def test_rows_of_one_step_cost_the_same() -> None:
    costs = costs_of({1: 1.0, 25: 2.0, 33: 3.0, 48: 3.0})
    assert set(costs.seconds(25, 32)) == {2.0}
    assert set(costs.seconds(33, 48)) == {3.0}


def test_a_single_disturbance_leaves_no_trace() -> None:
    costs = PassCosts()
    for seconds in (1.0, 1.0, 1.0, 50.0, 1.0):
        costs.add(16, seconds)
    assert costs.seconds(16, 16)[0] == 1.0


def test_more_rows_never_cost_less() -> None:
    assert costs_of({1: 5.0, 16: 2.0, 32: 3.0}).seconds(1, 1)[0] == 2.0


def test_costs_follow_a_lasting_change() -> None:
    costs = PassCosts()
    for seconds in [1.0] * 50 + [2.0] * 9:
        costs.add(8, seconds)
    assert costs.seconds(8, 8)[0] == 2.0


def test_stale_is_what_was_not_seen_lately() -> None:
    costs = PassCosts()
    assert not costs.known
    assert costs.stale(1, 1000)
    costs.add(1, 1.0)
    assert costs.known
    for _ in range(10):
        costs.add(16, 1.0)
    assert costs.stale(1, 9)
    assert not costs.stale(1, 11)
    assert not costs.stale(14, 2)


def test_recent_is_the_median_of_the_last_values() -> None:
    recent = Recent()
    assert recent.value == 0.0
    for value in [9.0] * 20 + [1.0] * 5:
        recent.add(value)
    assert recent.value == 1.0


def test_a_step_not_taken_for_long_is_forgotten() -> None:
    costs = costs_of({1: 1.0, 16: 9.0})
    for _ in range(2000):
        costs.add(1, 2.0)
    assert costs.seconds(16, 16)[0] == 2.0
    costs.add(16, 3.0)
    assert costs.seconds(16, 16)[0] == 3.0
