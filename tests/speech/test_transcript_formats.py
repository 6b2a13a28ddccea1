"""Subtitles and objects of a transcript."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart_speech.enumerations import SpeechTask, TranscriptFormat
from headstart_speech.formats import (
    as_json,
    as_srt,
    as_timed_line,
    as_verbose_json,
    as_vtt,
    timed_parts,
)
from headstart_speech.segments import Segment
from headstart_speech.windows import Transcript
from headstart_speech.words import Word


def segment(place: int, start: float, end: float, text: str) -> Segment:
    return Segment(place, start, end, text, (1, 2), 0, 0.0, -0.5, 1.25, None)


SEGMENTS = [segment(0, 0.0, 2.4, "Hello --> you,\n\nthere."), segment(1, 59.999, 3723.5, "Two lines\nin one.")]
TRANSCRIPT = Transcript("Hello", "en", 3723.51, SEGMENTS)


def test_subtitles() -> None:
    assert as_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:02,400\nHello -> you, there.\n\n"
        "2\n00:00:59,999 --> 01:02:03,500\nTwo lines in one.\n\n"
    )
    assert as_vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.400\nHello -> you, there.\n\n"
        "00:00:59.999 --> 01:02:03.500\nTwo lines in one.\n\n"
    )
    assert as_vtt([]) == "WEBVTT\n\n"
    assert as_srt([]) == ""
    assert as_timed_line(SEGMENTS[1]) == "[00:00:59.999 --> 01:02:03.500] Two lines in one."


def test_words_have_lines_of_their_own() -> None:
    words = (Word("Hello", 0.0, 0.5), Word("you,", 0.62, 1.0))
    segments = [replace(SEGMENTS[0], words=words), replace(SEGMENTS[1], words=())]
    parts = timed_parts(segments, words=True)
    assert [as_timed_line(part) for part in parts] == [
        "[00:00:00.000 --> 00:00:00.500] Hello",
        "[00:00:00.620 --> 00:00:01.000] you,",
    ]
    assert as_vtt(parts).count(" --> ") == 2
    assert timed_parts(segments, words=False) == segments
    told = as_verbose_json(replace(TRANSCRIPT, segments=segments), SpeechTask.TRANSCRIBE, words=True, segments=False)
    assert told["words"] == [
        {"word": "Hello", "start": 0.0, "end": 0.5},
        {"word": "you,", "start": 0.62, "end": 1.0},
    ]
    assert "segments" not in told


def test_objects() -> None:
    assert as_json(TRANSCRIPT) == {"text": "Hello", "usage": {"type": "duration", "seconds": 3724}}
    told = as_verbose_json(TRANSCRIPT, SpeechTask.TRANSLATE)
    assert (told["task"], told["language"], told["duration"]) == ("translate", "en", 3723.51)
    assert told["segments"][1] == {
        "id": 1, "start": 59.999, "end": 3723.5, "text": "Two lines\nin one.", "tokens": (1, 2), "seek": 0,
        "temperature": 0.0, "avg_logprob": -0.5, "compression_ratio": 1.25, "no_speech_prob": None,
    }  # fmt: skip


@pytest.mark.parametrize("form", list(TranscriptFormat))
def test_formats_say_whether_they_need_times(form: TranscriptFormat) -> None:
    assert form.timed == (form not in ("json", "text"))
