"""Transcripts as texts, subtitles and OpenAI's objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headstart_speech.enumerations import SpeechTask
from headstart_speech.segments import Segment
from headstart_speech.windows import Transcript
from headstart_speech.words import Word


def as_json(transcript: Transcript) -> dict[str, Any]:
    """``json``."""
    return {"text": transcript.text, "usage": {"type": "duration", "seconds": math.ceil(transcript.duration)}}


def as_verbose_json(
    transcript: Transcript, task: SpeechTask, words: bool = False, segments: bool = True
) -> dict[str, Any]:
    """``verbose_json``, with the times of words or segments that are wanted."""
    timed: dict[str, Any] = {}
    if words:
        timed["words"] = [asdict(word) for word in transcript.words]
    if segments:
        timed["segments"] = [_fields(segment) for segment in transcript.segments]
    return {
        "task": str(task),
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        **as_json(transcript),
        **timed,
    }


def _fields(segment: Segment) -> dict[str, Any]:
    """OpenAI has words beside the segments."""
    return {name: value for name, value in asdict(segment).items() if name != "words"}


def timed_parts(segments: Sequence[Segment], words: bool) -> list[Segment | Word]:
    """What gets a line of its own: the segments, or their words."""
    return [part for segment in segments for part in (segment.words or () if words else (segment,))]


def as_srt(parts: Sequence[Segment | Word]) -> str:
    """Subtitles for players of video."""
    return "".join(
        f"{number}\n{_time(part.start, ',')} --> {_time(part.end, ',')}\n{_line(part)}\n\n"
        for number, part in enumerate(parts, start=1)
    )


def as_vtt(parts: Sequence[Segment | Word]) -> str:
    """Subtitles for web pages."""
    return "WEBVTT\n\n" + "".join(
        f"{_time(part.start, '.')} --> {_time(part.end, '.')}\n{_line(part)}\n\n" for part in parts
    )


def as_timed_line(part: Segment | Word) -> str:
    """One line for people."""
    return f"[{_time(part.start, '.')} --> {_time(part.end, '.')}] {_line(part)}"


def _time(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _line(part: Segment | Word) -> str:
    text = part.word if isinstance(part, Word) else part.text
    # An arrow would be read as times, an empty line as the end of the subtitle.
    return " ".join(text.replace("-->", "->").split())
