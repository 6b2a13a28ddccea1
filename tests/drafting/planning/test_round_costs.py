"""How many guesses a round verifies, by what rounds cost."""

import pytest

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
    assert size.tokens / size.seconds == pytest.approx(max(speeds))
    assert size.tokens == pytest.approx(1 + sum(reach[: size.nodes]))


def test_dear_rows_leave_plain_decoding_and_free_ones_everything() -> None:
    assert costs(per_row=2.0).size(1, [0.9, 0.8], 0.0).nodes == 0
    assert costs(per_row=0.0).size(1, [0.9, 0.1, 0.01], 0.0).nodes == 3


def test_a_pass_that_was_never_timed_fills_a_tile() -> None:
    size = RoundCosts().size(4, [0.5] * 40, 0.0)
    assert (size.nodes, size.seconds) == (12, 0.0)


def test_plain_decoding_is_timed_again_now_and_then() -> None:
    known = costs(per_row=0.0)
    for _ in range(300):
        known.add(4, 1.0, 0.0, 0.0)
    assert known.size(1, [0.9], 0.0).nodes == 0
    known.add(1, 1.0, 0.0, 0.0)
    assert known.size(1, [0.9], 0.0).nodes == 1


def test_beside_prompts_a_guess_must_save_more_than_a_row_of_theirs() -> None:
    known = costs(per_row=0.0)
    known.read_prompts(rows=100, seconds=30.0)
    assert known.nodes_beside_prompts(1, [0.9, 0.4, 0.2]) == 2
    assert known.may_pay_beside_prompts(1)
    known.read_prompts(rows=100, seconds=90.0)
    assert known.nodes_beside_prompts(1, [0.8, 0.4]) == 0
    assert not known.may_pay_beside_prompts(1)


def test_beside_prompts_a_token_is_worth_its_share_of_the_rounds_to_come() -> None:
    known = costs(per_row=0.0)
    known.read_prompts(rows=100, seconds=30.0)
    # A round of one sequence, the last of a batch, says nothing of the next batch's.
    known.add(1, 1.0, 0.0, 0.0)
    assert known.nodes_beside_prompts(2, [0.9, 0.5]) == 1
    assert known.nodes_beside_prompts(4, [0.9, 0.5]) == 0
    assert not known.may_pay_beside_prompts(4)


def test_beside_prompts_nothing_is_guessed_before_a_pass_was_timed() -> None:
    assert not RoundCosts().may_pay_beside_prompts(1)
    assert RoundCosts().nodes_beside_prompts(1, [0.9]) == 0


def test_guesses_are_worth_the_time_of_their_tokens_less_their_rows() -> None:
    size = costs(per_row=0.1).size(1, [0.9, 0.8], 0.0)
    assert size.nodes == 2
    without = size.worth(0.0, 2)
    assert without == pytest.approx(-0.2)
    # All of the guesses' tokens, had they been said one by one by passes without them.
    assert size.worth(1.7, 2) == pytest.approx(1.7 * 1.0 / 1.0 - 0.2)


def test_a_path_is_looked_for_where_it_may_pay_for_its_row() -> None:
    """On average a row costs ``per_row`` seconds, in which ``tokens / seconds`` tokens are said elsewhere."""
    known = costs(per_row=0.05)
    assert known.min_probability is None
    size = known.size(1, [0.9, 0.8, 0.7], 0.0)
    assert known.min_probability is None, "asking for a size is no round"
    known.add(1 + size.nodes, 1.0, 0.0, 0.0, size)
    assert known.min_probability is not None
    assert size.pays is not None
    assert 0.5 * size.pays < known.min_probability <= size.pays


@pytest.mark.parametrize(("per_row", "least"), [(0.0, 0.025), (0.35, 0.2)])
def test_free_rows_make_no_path_worth_a_search_nor_dear_ones_a_sure_one_worthless(per_row: float, least: float) -> None:
    known = costs(per_row=per_row)
    known.add(3, 1.0, 0.0, 0.0, known.size(1, [0.99, 0.98], 0.0))
    assert known.min_probability == least


def test_rounds_without_guesses_say_nothing_about_rows() -> None:
    known = costs(per_row=0.05)
    known.add(1, 1.0, 0.0, 0.0, known.size(1, [], 0.0))
    assert known.min_probability is None


@pytest.mark.parametrize("timed", [(1,), (1, 2), (1, 2, 4, 6), (6,), (1, 48)])
@pytest.mark.parametrize("guesses", [0, 1, 40])
def test_more_sequences_than_any_pass_had_rows_are_planned_for(timed: tuple[int, ...], guesses: int) -> None:
    """Slow trial passes are cut short, and so many sequences decode nevertheless."""
    for roots in range(1, 130):
        known = RoundCosts()
        for rows in timed:
            known.passes.add(rows, 0.3)
        for _ in range(2):  # when plain decoding was not timed yet, and when it was
            size = known.size(roots, [0.5] * guesses, 10.0)
            assert 0 <= size.nodes <= guesses
            assert size.tokens == 0 or size.tokens >= roots
            assert known.nodes_beside_prompts(roots, [0.5] * guesses) <= guesses
            known.add(roots, 0.5, 0.0, 0.01)
