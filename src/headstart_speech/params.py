"""What a transcription is told."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.errors import RequestError, require_utf8
from headstart.sampling.params import SamplingParams
from headstart_speech.enumerations import SpeechTask


@dataclass(frozen=True)
class TranscriptionParams:
    """How a recording is written down, beside ``SamplingParams``."""

    language: str | None = None
    """As "de"; None: the one that the model finds likeliest in the first window."""
    task: SpeechTask | str = SpeechTask.TRANSCRIBE
    prompt: str = ""
    """A text that came before, every window's: names and spellings are taken over from it."""
    timestamps: bool = False
    """Say when each segment begins and ends. Recordings that take several windows are always read so."""
    word_timestamps: bool = False
    """Say when each word begins and ends, too: one more pass for each window. Implies ``timestamps``."""
    condition_on_previous_text: bool = False
    """Let each window read what the ones before it said (transformers: ``condition_on_prev_tokens``)."""
    speech_probability: bool = False
    """Also find out how likely it is that nobody speaks in a window: one more row for each."""

    def __post_init__(self) -> None:
        if self.task not in list(SpeechTask):
            raise RequestError(f"task is {self.task!r:.40}; give {' or '.join(SpeechTask)}.", "task")
        for name in ("language", "prompt"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "prompt" or value is not None):
                raise RequestError(f"{name} is {value!r:.40}; give a text.", name)
            require_utf8(value or "", name)
        for name in ("timestamps", "word_timestamps", "condition_on_previous_text", "speech_probability"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r:.40}; it must be True or False.", name)


def check_sampling(params: SamplingParams) -> None:
    """Refuse what a transcription cannot do, since its outputs are windows of one text.

    Raises:
        RequestError: which.
    """
    if params.n != 1:
        raise RequestError(f"n is {params.n}, but a recording has one transcript; leave it out.", "n")
    if params.structured_outputs is not None:
        raise RequestError(
            "structured_outputs are given, but speech follows no grammar; leave them out.", "structured_outputs"
        )
    if params.stop:
        raise RequestError("stop is given, but a transcript ends with its recording; leave it out.", "stop")
