"""Transcripts as texts, subtitles and OpenAI's objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headstart.enumerations import SpeechTask
from headstart.transcription.segments import Segment
from headstart.transcription.windows import Transcript


def as_json(transcript: Transcript) -> dict[str, Any]:
    """``json``."""
    return {"text": transcript.text, "usage": {"type": "duration", "seconds": math.ceil(transcript.duration)}}


def as_verbose_json(transcript: Transcript, task: SpeechTask) -> dict[str, Any]:
    """``verbose_json``."""
    return {
        "task": str(task),
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        **as_json(transcript),
        "segments": [asdict(segment) for segment in transcript.segments],
    }


def as_srt(segments: Sequence[Segment]) -> str:
    """Subtitles for players of video."""
    return "".join(
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_line(segment)}\n\n"
        for number, segment in enumerate(segments, start=1)
    )


def as_vtt(segments: Sequence[Segment]) -> str:
    """Subtitles for web pages."""
    return "WEBVTT\n\n" + "".join(
        f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_line(segment)}\n\n" for segment in segments
    )


def as_timed_line(segment: Segment) -> str:
    """One line for people."""
    return f"[{_time(segment.start, '.')} --> {_time(segment.end, '.')}] {_line(segment)}"


def _time(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _line(segment: Segment) -> str:
    # An arrow would be read as times, an empty line as the end of the subtitle.
    return " ".join(segment.text.replace("-->", "->").split())
