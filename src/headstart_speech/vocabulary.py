"""The tokens by which a Whisper is told what to write, and says times (Radford et al. 2022, figure 1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headstart.errors import RequestError, closest
from headstart.models.config import ModelConfig
from headstart.text.tokenizer import Tokenizer
from headstart_speech.enumerations import SpeechTask

MULTILINGUAL = 51_865
"""Vocabularies of so many tokens or more know languages and tasks (openai/whisper, ``model.py``)."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True)
class SpeechTokens:
    """Token ids; None: the vocabulary has no such token."""

    start: int
    end: int
    """What ends an output."""
    silent: int | None
    """Says that no times are wanted; the tokens behind it are times, from 0 on."""
    before: int | None
    """Stands in front of a text that came before."""
    nobody: int | None
    """Said where nobody speaks."""
    languages: Mapping[str, int]
    """Empty: the model knows but one."""
    tasks: Mapping[SpeechTask, int]

    @classmethod
    def of(cls, config: ModelConfig, tokenizer: Tokenizer) -> Self:
        """Those of a model.

        Raises:
            RequestError: its encoder reads no audio, or its files do not say what outputs begin with.
        """
        encoder = config.encoder
        if encoder is None or encoder.mel_bins is None:
            raise RequestError("this model reads no audio; use a Whisper.", "model")
        start = encoder.start_token_id
        if start is None:
            raise RequestError(
                "the model's files do not say what outputs begin with (decoder_start_token_id).", "model"
            )
        names = tokenizer.vocabulary
        ends = tokenizer.eos_token_ids or config.eos_token_ids
        knows = config.vocab_size >= MULTILINGUAL
        added = tokenizer.added_tokens.items() if knows else ()
        # Languages stand behind the start token.
        behind = [(text, token) for token, (text, _) in added if token > start]
        languages = [(found[1], token) for text, token in behind if (found := _LANGUAGE.fullmatch(text))]
        tasks = {task: names[f"<|{task}|>"] for task in SpeechTask if knows and f"<|{task}|>" in names}
        return cls(
            start,
            min(ends, default=start),
            names.get("<|notimestamps|>"),
            names.get("<|startofprev|>"),
            names.get("<|nospeech|>", names.get("<|nocaptions|>")),
            dict(languages),
            tasks,
        )

    @property
    def first_time(self) -> int:
        """The token of time 0, where there are times."""
        assert self.silent is not None
        return self.silent + 1

    def require_times(self, seconds: float) -> None:
        """Refuse a vocabulary without times, for a recording of so many seconds.

        Raises:
            RequestError: it has none.
        """
        if self.silent is None:
            raise RequestError(
                f"the model's vocabulary has no times (<|notimestamps|>), which a recording of {seconds:.1f} seconds "
                "needs; ask for none, and cut what is longer than a window.",
                "timestamps",
            )

    def check(self, language: str | None, task: SpeechTask | str) -> None:
        """Refuse a language or task that the model does not know.

        Raises:
            RequestError: which.
        """
        if task != SpeechTask.TRANSCRIBE and SpeechTask(task) not in self.tasks:
            raise RequestError(
                f"task is {str(task)!r}, but this model writes English alone; use a multilingual one.", "task"
            )
        if language is not None and self.languages and language not in self.languages:
            near = closest(language, self.languages)
            meant = f"did you mean {near!r}?" if near else "give one as 'de'."
            raise RequestError(f"language is {language!r:.40}, which the model does not know; {meant}", "language")
        if language not in (None, "en") and not self.languages:
            raise RequestError(
                f"language is {language!r:.40}, but this model knows English alone; use a multilingual one.", "language"
            )
