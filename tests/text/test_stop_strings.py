"""Stop strings: the first to be completed ends the text, however the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.text.stop_strings import StopMatcher

STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By brute force: the stop string that ends first, the longest of those that end there."""
    found = [
        (at + len(stop), at, stop)
        for stop in stops
        for at in range(len(text) - len(stop) + 1)
        if text.startswith(stop, at)
    ]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


@settings(max_examples=500, deadline=None)
@given(STOPS, st.lists(st.text("abc", max_size=6), max_size=12), st.booleans())
def test_the_text_is_cut_at_the_first_completed_stop(stops: list[str], pieces: list[str], kept: bool) -> None:
    expected, stop = cut("".join(pieces), stops)
    if kept and stop is not None:
        expected += stop
    matcher = StopMatcher(stops, kept)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert expected.startswith(shown)  # nothing of a stop string is ever shown, unless kept and complete
    shown += matcher.flush()
    assert (shown, matcher.matched) == (expected, stop)


@settings(max_examples=200, deadline=None)
@given(STOPS, st.text("abc", max_size=20))
def test_nothing_is_held_back_without_need(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "expected", "stop"),
    [
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # "bc" is complete before "abcd" is
        (["bcd", "abcd"], "xabcd", "x", "abcd"),
        (["aab"], "aaab", "a", "aab"),
        (["🎉"], "a🎉b", "a", "🎉"),
        ([], "text", "text", None),
    ],
)
def test_examples(stops: list[str], text: str, expected: str, stop: str | None) -> None:
    for pieces in ([text], list(text)):
        matcher = StopMatcher(stops)
        shown = "".join([matcher.push(piece) for piece in pieces]) + matcher.flush()
        assert (shown, matcher.matched) == (expected, stop)


def test_nothing_follows_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("c") + matcher.flush() == ""
