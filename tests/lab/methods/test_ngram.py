from __future__ import annotations

from collections import Counter

import pytest
from drafting_toys import ToySequence
from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.errors import ConfigError
from headstart_lab.methods.trivial.ngram import NgramDrafter, NgramOptions, NgramTables


def recount(history: list[int], limit: int, min_order: int, max_order: int, window: int | None) -> list[int]:
    """The chapter's predictor by the book: count the window anew for every guess."""
    window_tokens = history if window is None else history[-window:]
    tentative = list(window_tokens)
    for _ in range(limit):
        for length in range(max_order - 1, min_order - 2, -1):
            context = tentative[-length:]
            places = [i for i in range(length, len(window_tokens)) if window_tokens[i - length : i] == context]
            if len(tentative) >= length and places:
                counts = Counter(window_tokens[i] for i in places)
                latest = {window_tokens[i]: i for i in places}
                tentative.append(max(counts, key=lambda token: (counts[token], latest[token])))
                break
        else:
            break
    return tentative[len(window_tokens) :]


@pytest.mark.parametrize("window", [None, 4, 7, 20])
@pytest.mark.parametrize("orders", [(2, 4), (2, 2), (3, 4), (4, 4)], ids=str)
@given(tokens=st.lists(st.integers(0, 3), min_size=8, max_size=60), piece=st.sampled_from([1, 2, 5, 60]))
def test_tables_equal_a_recount_of_the_window(
    orders: tuple[int, int], window: int | None, tokens: list[int], piece: int
) -> None:
    tables = NgramTables(*orders, window)
    for start in range(0, len(tokens), piece):
        tables.extend(tokens[start : start + piece])
        assert tables.predict(6)[0] == recount(tokens[: start + piece], 6, *orders, window)


def test_the_default_window_of_512_evicts() -> None:
    drafter = NgramDrafter(DraftContext(1000), NgramOptions())
    sequence = ToySequence(1, [7, 8, 9, *range(100, 609), 7])
    drafter.begin(sequence)
    assert len(sequence.tokens) == 513
    assert len(drafter.propose([sequence], [DraftBudget(4, 4)])[0]) == 0
    wide = NgramDrafter(DraftContext(1000), NgramOptions(window=None))
    wide.begin(sequence)
    assert wide.propose([sequence], [DraftBudget(4, 4)])[0].tokens.tolist() == [8, 9, 100, 101]


def test_the_chapters_example() -> None:
    the, cat, sat, on, mat, dog, stop = range(7)
    history = [the, cat, sat, on, the, mat, stop, the, cat, sat, on, the, mat, stop, the, dog, the, cat, sat]
    tables = NgramTables(2, 4, 512)
    tables.extend(history)
    assert tables.predict(4)[0] == [on, the, mat, stop]


def test_the_longest_context_wins_over_the_larger_count() -> None:
    tables = NgramTables(2, 4, 512)
    tables.extend([1, 2, 3, 9, 0, 3, 5, 0, 3, 5, 0, 1, 2, 3])
    assert tables.predict(1)[0] == [9]


def test_of_equal_counts_the_latest_wins() -> None:
    tables = NgramTables(2, 4, 512)
    tables.extend([3, 9, 0, 3, 5, 0, 0, 3])
    assert tables.predict(1)[0] == [5]


def test_an_unseen_context_guesses_nothing() -> None:
    tables = NgramTables(2, 4, 512)
    tables.extend([1, 2, 3])
    assert tables.predict(4)[0] == []


@pytest.mark.parametrize(
    "options",
    [{"draft_tokens": 0}, {"min_order": 1}, {"max_order": 2, "min_order": 3}, {"window": 3}],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        NgramOptions(**options)
