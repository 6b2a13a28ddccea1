"""How many guesses a round verifies, by what rounds cost."""

from dataclasses import replace

import pytest

from headstart.drafting.base import DraftBudget
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.round_costs import RoundCosts


def costs(per_row: float, plain: float = 1.0, rows: int = 16, other: float = 0.0) -> RoundCosts:
    """Passes of up to ``rows`` rows were timed, each row beyond the first ``per_row`` seconds dearer."""
    known = RoundCosts()
    for count in range(1, rows + 1):
        known.add(count, plain + per_row * (count - 1), 0.0, other)
    return known


@pytest.mark.parametrize("per_row", [0.0, 0.05, 0.2, 0.6, 2.0])
def test_no_other_number_of_nodes_says_more_tokens_a_second(per_row: float) -> None:
    reach = [0.9, 0.7, 0.4, 0.3, 0.1, 0.05, 0.01]
    known = costs(per_row, other=0.1)
    size = known.size(1, reach, 0.0)
    speeds = [
        (1 + sum(reach[:nodes])) / (seconds + 0.1)
        for nodes, seconds in enumerate(known.passes.seconds(1, 1 + len(reach)))
    ]
    assert speeds[size.nodes] == pytest.approx(max(speeds))
    assert size.per_row == pytest.approx(per_row if size.nodes else 0.0)


def test_dear_rows_leave_plain_decoding_and_free_ones_everything() -> None:
    assert costs(per_row=2.0).size(1, [0.9, 0.8], 0.0).nodes == 0
    assert costs(per_row=0.0).size(1, [0.9, 0.1, 0.01], 0.0).nodes == 3


@pytest.mark.parametrize("roots", [1, 4, 16])
def test_what_promises_next_to_nothing_is_not_verified(roots: int) -> None:
    """What a row takes is measured with an error."""
    alike = RoundCosts()
    for rows in c.STEPS:
        alike.add(rows, rows * (0.99 if rows % 5 == 0 else 1.0), 0.0, 0.0)
    assert alike.size(roots, [0.995] * 40, 0.0).nodes == 0
    assert costs(per_row=0.94, rows=2).size(1, [0.995], 0.0).nodes == 0
    assert costs(per_row=0.93, rows=2).size(1, [0.995], 0.0).nodes == 1


def test_a_path_is_looked_for_where_it_pays_for_its_row() -> None:
    """A row takes as long as a tenth of a token."""
    known, given = costs(0.2), DraftBudget(8, 8)
    assert known.budgets([given]) == [given]
    for row_seconds, least in ((0.2, 0.1), (0.01, c.LEAST_PROBABLE), (2.0, c.MOST_PROBABLE)):
        for _ in range(200):
            known.said(3, 6.0, row_seconds)
        (budget,) = known.budgets([given])
        assert budget.min_probability == pytest.approx(least, rel=0.01)
        assert replace(budget, min_probability=None) == given


def test_a_pass_that_was_never_timed_fills_a_tile() -> None:
    size = RoundCosts().size(4, [0.5] * 40, 0.0)
    assert (size.nodes, size.per_row) == (12, 0.0)


@pytest.mark.parametrize("timed", [(1,), (1, 2), (1, 2, 4, 6), (6,), (1, 48)])
@pytest.mark.parametrize("guesses", [0, 1, 40])
def test_more_sequences_than_any_pass_had_rows_are_planned_for(timed: tuple[int, ...], guesses: int) -> None:
    """Slow trial passes are cut short, and so many sequences decode nevertheless."""
    for roots in range(1, 130):
        known = RoundCosts()
        for rows in timed:
            known.passes.add(rows, 0.3)
        for _ in range(2):  # before a round was timed, and after
            size = known.size(roots, [0.5] * guesses, 10.0)
            assert 0 <= size.nodes <= guesses
            known.add(roots, 0.5, 0.0, 0.01)
