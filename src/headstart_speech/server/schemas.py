"""The replies to recordings, for the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class AudioUsage(BaseModel):
    """How much was heard."""

    type: Literal["duration"]
    seconds: int


class SpokenSegment(BaseModel):
    """A piece of speech; times in seconds."""

    id: int
    seek: int = Field(description="The first frame (10 ms) of the window that it was heard in.")
    start: float
    end: float
    text: str
    tokens: list[int] = Field(description="Times among them.")
    temperature: float
    avg_logprob: float | None = Field(description="Mean over the window's tokens, before any rule or transform.")
    compression_ratio: float
    no_speech_prob: float | None


class SpokenWord(BaseModel):
    """A word with its punctuation; times in seconds."""

    word: str
    start: float
    end: float


class TranscriptionReply(BaseModel):
    """Of ``response_format`` json; ``verbose_json`` adds the others; ``text``, ``srt`` and ``vtt`` are texts."""

    text: str
    usage: AudioUsage
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    words: list[SpokenWord] | None = None
    segments: list[SpokenSegment] | None = None
