"""Pieces of speech with their times, cut out of what a window's output says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headstart_speech.words import Word

FRAMES_PER_TIME = 2
"""Frames of features from one time to the next."""
FRAMES_PER_SECOND = 100
SECONDS_PER_TIME = FRAMES_PER_TIME / FRAMES_PER_SECOND


@dataclass(frozen=True)
class Segment:
    """A piece of speech. Times are in seconds, from the beginning of the recording."""

    id: int
    """From 0 on."""
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    """Times among them."""
    seek: int
    """The first frame (of 10 ms) of the window in which it was heard."""
    temperature: float
    """What the window was sampled at."""
    avg_logprob: float | None = None
    """Mean log-probability of the window's tokens, before any rule or transform; None: they were not looked at."""
    compression_ratio: float = 0.0
    """Bytes of the window's text, over those of the same compressed: high where it repeats itself."""
    no_speech_prob: float | None = None
    """How likely it is that nobody speaks in the window; None: it was not asked for."""
    words: tuple[Word, ...] | None = None
    """None: their times were not asked for."""


class Piece(NamedTuple):
    """A segment of one window; times count from the window's beginning."""

    start: int
    end: int
    tokens: tuple[int, ...]


def pieces_of(tokens: Sequence[int], first_time: int, frames: int) -> tuple[list[Piece], int]:
    """The segments of a window's output, and by how many frames the next window begins later.

    Between two times that follow each other a segment ends and the next begins. What comes behind the last such place
    is heard again in the next window, unless a time ends it: then nobody speaks any more. As in openai/whisper and in
    transformers' long form.

    Args:
        tokens: without the end-of-sequence token.
        first_time: the token of time 0.
        frames: of the recording, that the window has read.
    """
    timed = [token >= first_time for token in tokens]
    ends_timed = timed[-2:] == [False, True]
    cuts = [place + 1 for place in range(len(tokens) - 1) if timed[place] and timed[place + 1]]
    if not cuts:
        times = [token - first_time for token in tokens if token >= first_time]
        end = times[-1] if times and times[-1] else frames // FRAMES_PER_TIME
        return [Piece(0, end, tuple(tokens))], frames
    if ends_timed:
        cuts.append(len(tokens))
    pieces, begun = [], 0
    for cut in cuts:
        own = tuple(tokens[begun:cut])
        pieces.append(Piece(own[0] - first_time, own[-1] - first_time, own))
        begun = cut
    return pieces, frames if ends_timed else pieces[-1].end * FRAMES_PER_TIME


def settled(tokens: Sequence[int], first_time: int) -> int:
    """How many tokens of a window's output will be kept, whatever follows."""
    for place in range(len(tokens) - 1, 0, -1):
        if tokens[place] >= first_time and tokens[place - 1] >= first_time:
            return place
    return 0
