from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.methods.suffix.suffix_automaton import ROOT_STATE, SuffixAutomaton

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=4)


def walk(automaton: SuffixAutomaton, substring: tuple[int, ...]) -> int | None:
    state: int | None = ROOT_STATE
    for token in substring:
        state = automaton.following[state].get(token)
        if state is None:
            return None
    return state


def ends_of_substrings(texts: list[list[int]], max_length: int) -> dict[tuple[int, ...], list[int]]:
    """substring -> the places where it ends, counted over all texts."""
    ends: dict[tuple[int, ...], list[int]] = {}
    before = 0
    for text in texts:
        for end in range(1, len(text) + 1):
            for start in range(max(0, end - max_length), end):
                ends.setdefault(tuple(text[start:end]), []).append(before + end)
        before += len(text)
    return ends


@given(TEXTS, st.sampled_from([1, 2, 3, 5, 30]))
def test_counts_and_places_of_every_substring(texts: list[list[int]], max_length: int) -> None:
    automaton = SuffixAutomaton(max_length)
    for text in texts:
        automaton.start_text()
        automaton.extend(text)
    ends = ends_of_substrings(texts, max_length)
    for substring, places in ends.items():
        state = walk(automaton, substring)
        assert state is not None
        assert automaton.count[state] == len(places)
        assert automaton.latest[state] == places[-1]
        followers = {longer[-1] for longer in ends if longer[:-1] == substring}
        if len(substring) < max_length:
            assert set(automaton.following[state]) == followers


@given(TEXTS, st.sampled_from([2, 4, 30]))
def test_the_tip_stands_for_the_longest_suffix_within_the_limit(texts: list[list[int]], max_length: int) -> None:
    automaton = SuffixAutomaton(max_length)
    for text in texts:
        automaton.start_text()
        for end, token in enumerate(text, 1):
            automaton.extend([token])
            suffix = tuple(text[max(0, end - max_length) : end])
            assert automaton.tip == (walk(automaton, suffix), len(suffix))


@given(TEXTS, st.lists(st.integers(0, 3), max_size=12))
def test_longest_suffix(texts: list[list[int]], tokens: list[int]) -> None:
    automaton = SuffixAutomaton(30)
    for text in texts:
        automaton.start_text()
        automaton.extend(text)
    substrings = ends_of_substrings(texts, 30)
    longest = next((tokens[i:] for i in range(len(tokens)) if tuple(tokens[i:]) in substrings), [])
    assert automaton.longest_suffix(tokens) == (walk(automaton, tuple(longest)), len(longest))


def test_repetitive_text_takes_linear_space() -> None:
    automaton = SuffixAutomaton(64)
    automaton.extend([1] * 5000)
    assert len(automaton.link) == 5001
    assert automaton.count[walk(automaton, (1,) * 64)] == 5000 - 63
