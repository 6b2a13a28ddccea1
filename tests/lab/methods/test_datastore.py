from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart_lab.methods.rest.datastore import LONGEST, Datastore

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=4)


def places(texts: list[list[int]], string: list[int]) -> list[tuple[int, int]]:
    """Every place where a string stands, one by one."""
    return [
        (number, first)
        for number, text in enumerate(texts)
        for first in range(len(text) - len(string) + 1)
        if text[first : first + len(string)] == string
    ]


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST))
def test_a_string_is_found_wherever_it_stands_and_nowhere_else(texts: list[list[int]], string: list[int]) -> None:
    store = Datastore(texts)
    assert store.size == sum(map(len, texts))
    low, high = store.find(string)
    expected = places(texts, string)
    assert high - low == len(expected)
    found = store.followers(low, high, len(string), 5, 1000)
    behind = [texts[number][first + len(string) :][:5] for number, first in expected]
    assert sorted(found) == sorted(behind)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=LONGEST + 4), st.integers(1, LONGEST + 2))
def test_the_longest_suffix_that_stands_somewhere(texts: list[list[int]], tokens: list[int], most: int) -> None:
    store = Datastore(texts)
    lengths = range(min(most, LONGEST, len(tokens)), 0, -1)
    expected = next((length for length in lengths if places(texts, tokens[len(tokens) - length :])), 0)
    length, low, high = store.longest_suffix(tokens, most)
    assert length == expected
    assert high - low == (len(places(texts, tokens[len(tokens) - length :])) if length else 0)


def test_of_many_places_a_few_are_looked_at() -> None:
    store = Datastore([[1, 2, 3] * 100, [2**21 - 2, 0]])
    low, high = store.find([1, 2])
    assert high - low == 100
    assert store.followers(low, high, 2, 2, 4) in ([[3, 1]] * 4, [[3], *[[3, 1]] * 3])
    assert store.followers(*store.find([2**21 - 2]), 1, 3, 9) == [[0]]


def test_an_empty_store_finds_nothing() -> None:
    assert Datastore([]).longest_suffix([1, 2]) == (0, 0, 0)
    assert Datastore([[], []]).size == 0
