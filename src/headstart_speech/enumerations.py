"""Names that users choose from. Importing them imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class SpeechTask(StrEnum):
    """What is written down of a recording."""

    TRANSCRIBE = "transcribe"
    """What it says, in its own language."""
    TRANSLATE = "translate"
    """The same in English, by a model that knows many languages."""


class TranscriptFormat(StrEnum):
    """How a transcript is written, by OpenAI's names."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    """SubRip: numbered subtitles."""
    VERBOSE_JSON = "verbose_json"
    """With segments, and what is known of them."""
    VTT = "vtt"
    """Subtitles of web pages (WebVTT)."""

    @property
    def timed(self) -> bool:
        """Whether it says when something is said."""
        return self in (TranscriptFormat.SRT, TranscriptFormat.VERBOSE_JSON, TranscriptFormat.VTT)
