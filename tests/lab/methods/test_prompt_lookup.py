from __future__ import annotations

import pytest
from drafting_toys import ToySequence
from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.errors import ConfigError
from headstart_lab.methods.copying.prompt_lookup import NgramPlaces, PromptLookupDrafter, PromptLookupOptions


def search(tokens: list[int], limit: int, min_ngram: int, max_ngram: int, leftmost: bool) -> list[int]:
    """Slide over the whole context, longest n-gram first."""
    for length in range(max_ngram, min_ngram - 1, -1):
        suffix = tokens[-length:]
        ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == suffix]
        if len(tokens) >= length and ends:
            end = ends[0] if leftmost else ends[-1]
            return tokens[end : end + limit]
    return []


@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 5), (1, 1)], ids=str)
@given(tokens=st.lists(st.integers(0, 3), min_size=8, max_size=50), piece=st.sampled_from([1, 2, 5, 50]))
def test_places_equal_a_search(sizes: tuple[int, int], leftmost: bool, tokens: list[int], piece: int) -> None:
    places = NgramPlaces(*sizes, leftmost)
    for start in range(0, len(tokens), piece):
        places.extend(tokens[start : start + piece])
        assert places.follow_up(6) == search(tokens[: start + piece], 6, *sizes, leftmost)


@pytest.mark.parametrize(("match", "follow_up"), [("latest", [7, 8, 1]), ("leftmost", [5, 6, 1])])
def test_which_of_equal_matches_is_copied(match: str, follow_up: list[int]) -> None:
    drafter = PromptLookupDrafter(DraftContext(10), PromptLookupOptions(draft_tokens=3, match=match))
    sequence = ToySequence(1, [1, 2, 5, 6, 1, 2, 7, 8, 1, 2])
    drafter.begin(sequence)
    assert drafter.propose([sequence], [DraftBudget(9, 9)])[0].tokens.tolist() == follow_up


def test_a_longer_match_wins_over_a_later_one() -> None:
    places = NgramPlaces(1, 3, leftmost=False)
    places.extend([1, 2, 3, 4, 0, 3, 5, 1, 2, 3])
    assert places.follow_up(1) == [4]


def test_a_suffix_does_not_match_itself() -> None:
    places = NgramPlaces(1, 3, leftmost=False)
    places.extend([1, 2, 3])
    assert places.follow_up(5) == []


@pytest.mark.parametrize("options", [{"draft_tokens": 0}, {"min_ngram": 0}, {"max_ngram": 0}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PromptLookupOptions(**options)
