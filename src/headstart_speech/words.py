"""Words of a transcript, put together from tokens, and their times."""

from __future__ import annotations

import codecs
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}
"""Languages that put no spaces between words: each character, or what of several a token says at once, is one."""
_BEFORE = "\"'“¿([{-"
"""Punctuation that belongs to the word behind it."""
_BEHIND = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before it."""


@dataclass(frozen=True)
class Word:
    """A word with its punctuation. Times are in seconds, from the beginning of the recording."""

    word: str
    start: float
    end: float


@dataclass
class Span:
    """Tokens that make a word; none once they have joined another."""

    text: str
    places: list[int] = field(default_factory=list)
    """Of its tokens."""


def words_of(said: Sequence[tuple[int, bytes]], language: str) -> list[Span]:
    """Which tokens make words, as openai/whisper and transformers part them: a word begins with a space, punctuation
    joins its neighbour.

    Args:
        said: [token] its place, and what it says.
        language: as "en".
    """
    spans = _characters(said)
    if language not in _UNSPACED:
        spans = _spaced(spans)
    _join(spans)
    return [span for span in spans if span.text.strip()]


def _characters(said: Sequence[tuple[int, bytes]]) -> list[Span]:
    """Tokens that say whole characters together."""
    decoder, spans, places = codecs.getincrementaldecoder("utf-8")("replace"), list[Span](), list[int]()
    text = ""
    for place, each in said:
        text += decoder.decode(each)
        places.append(place)
        if not decoder.getstate()[0]:
            spans.append(Span(text, places))
            text, places = "", []
    if places:
        spans.append(Span(text + decoder.decode(b"", final=True), places))
    return spans


def _spaced(spans: Sequence[Span]) -> list[Span]:
    words = list[Span]()
    for span in spans:
        if not words or span.text.startswith(" ") or span.text.strip() in string.punctuation:
            words.append(span)
        else:
            words[-1] = Span(words[-1].text + span.text, words[-1].places + span.places)
    return words


def _join(spans: list[Span]) -> None:
    """Let punctuation join the words that it belongs to; what has joined is left empty."""
    behind = len(spans) - 1
    for place in range(len(spans) - 2, -1, -1):
        span, word = spans[place], spans[behind]
        if span.text.startswith(" ") and span.text.strip() in _BEFORE:
            spans[behind] = Span(span.text + word.text, span.places + word.places)
            spans[place] = Span("")
        else:
            behind = place
    before = 0
    for place in range(1, len(spans)):
        span, word = spans[place], spans[before]
        if not word.text.endswith(" ") and span.text in _BEHIND:
            spans[before] = Span(word.text + span.text, word.places + span.places)
            spans[place] = Span("")
        else:
            before = place
