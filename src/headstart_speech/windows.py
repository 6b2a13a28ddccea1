"""A recording on its way to a transcript: window after window, each decoded exactly as any other request.

Whoever decodes asks ``samples`` for the next requests, decodes them, and hands them to ``take``, until it is ``done``.
 A window begins where the last one's speech was known to end (Radford et al. 2022, section 3.8), so the
windows of one recording follow each other; those of several recordings ride in the same passes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import SpeculationParams
from headstart.engine.constraint import TokenConstraint
from headstart.engine.outputs import FinishReason, SequenceStats, TokenLogprobs
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt
from headstart.entrypoints.request import Sample
from headstart.errors import RequestError
from headstart.loading.model import Model
from headstart.passes.batch import EncoderInput
from headstart.sampling.params import SamplingParams
from headstart.text.tokenizer import Tokenizer
from headstart_speech.alignment import Aligner
from headstart_speech.enumerations import SpeechTask
from headstart_speech.params import TranscriptionParams, check_sampling
from headstart_speech.recordings import Recording, file_content, read_recording
from headstart_speech.segments import (
    FRAMES_PER_SECOND,
    SECONDS_PER_TIME,
    Piece,
    Segment,
    pieces_of,
    settled,
)
from headstart_speech.timestamp_rules import TimestampRules
from headstart_speech.vocabulary import SpeechTokens
from headstart_speech.words import Word, words_of

_ALL = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
"""All log-probabilities in one place: the model's settings may forbid the tokens that they are wanted of."""


@dataclass(frozen=True)
class Wanted:
    """A request that a transcription needs an answer to: what ``LLM.samples`` takes."""

    prompt: EncodedPrompt
    params: SamplingParams
    constraint: Callable[[], TokenConstraint] | None = None


@dataclass
class Transcript:
    """What a recording says."""

    text: str
    language: str
    """As "en"; of the recording, also where it was translated."""
    duration: float
    """Of the recording, in seconds."""
    segments: list[Segment]
    """One for each window where no times were asked for."""
    stats: list[SequenceStats] = field(default_factory=list)
    """[window]."""

    @property
    def words(self) -> list[Word]:
        """Of all segments; none where their times were not asked for."""
        return [word for segment in self.segments for word in segment.words or ()]


class Transcription:
    """One recording and how far it has been written down.

    Args:
        model: a Whisper.
        aligner: of the model.
        audio: as ``Recording.of`` takes it, or a file's path.
        params, sampling: how it is written down.

    Raises:
        RequestError: the model cannot do what is asked for, or the recording is none.
        ConfigError: a package that this takes is not installed.
    """

    def __init__(
        self, model: Model, aligner: Aligner, audio: object, params: TranscriptionParams, sampling: SamplingParams
    ) -> None:
        tokens = self._tokens = SpeechTokens.of(model.config, model.tokenizer)
        encoder = model.config.encoder
        assert encoder is not None
        tokens.check(params.language, params.task)
        check_sampling(sampling)
        self._params = params
        self._aligner = aligner
        self._tokenizer = model.tokenizer
        self._vocab_size, self._encoder = model.config.vocab_size, encoder
        self._longest_before = model.config.max_positions // 2 - 1
        if isinstance(audio, str | Path):
            audio = read_recording(file_content(audio))
        self._recording = Recording.of(audio, encoder)
        self._timed = params.timestamps or params.word_timestamps or self._recording.frames > self._recording.window
        if self._timed:
            tokens.require_times(self._recording.seconds)
        logprobs = (sampling.logprobs or 0) if self._timed else sampling.logprobs
        self._sampling = replace(sampling, logprobs=logprobs)
        self._language = params.language or (None if tokens.languages else "en")
        self._seek = 0
        self._source: EncoderInput | None = None
        self._said = b""
        """Text that is final."""
        self._kept: list[int] = []
        """Its tokens, times among them."""
        self._segments: list[Segment] = []
        self._stats: list[SequenceStats] = []
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def seconds(self) -> float:
        """Of the recording."""
        return self._recording.seconds

    @property
    def progress(self) -> float:
        """How much of the recording has been heard, 0 to 1."""
        return 1.0 if self._done else self._seek / max(self._recording.frames, 1)

    def wanted(self) -> list[Wanted]:
        """The requests to be decoded next, the window's own first; they do not depend on each other."""
        if self._source is None:
            self._source = self._recording.source(self._seek)
        start, source = self._tokens.start, self._source
        if self._language is None:
            return [Wanted(EncodedPrompt("", [start], source, ""), _ALL)]
        prompt = self._prompt()
        wanted = [Wanted(prompt, self._window_sampling(), self._rules if self._timed else None)]
        nobody = self._tokens.nobody
        if self._params.speech_probability and nobody is not None:
            begun = prompt.token_ids[: prompt.token_ids.index(start) + 1]
            wanted.append(Wanted(EncodedPrompt("", begun, source, ""), _ALL))
        return wanted

    def samples(self, llm: LLM, speculation: SpeculationParams | None = None, cache_salt: str = "") -> list[Sample]:
        """The same, ready to be decoded.

        Args:
            llm: of the model.
            speculation, cache_salt: as for ``LLM.generate``.

        Raises:
            RequestError: a parameter does not fit the model.
        """
        return [
            sample
            for place, wanted in enumerate(self.wanted())
            for sample in llm.samples(
                wanted.prompt,
                wanted.params,
                speculation,
                prompt_index=place,
                cache_salt=cache_salt,
                constraint=wanted.constraint,
            )
        ]

    def take(self, samples: Sequence[Sample]) -> list[Segment]:
        """Go on by the outputs of what was wanted, in its order; the segments that are new.

        Raises:
            RequestError: one has failed, or was ended.
            ConfigError: memory for times of words is short.
        """
        for sample in samples:
            if sample.sequence.error is not None:
                raise RequestError(sample.sequence.error, sample.sequence.error_field)
            if sample.sequence.finish_reason is FinishReason.ABORT:
                raise RequestError("the request was ended before its recording was.")
        window, *others = samples
        begun, output = window.sequence.tokens[: window.sequence.prompt_length], window.sequence.output
        assert self._source is not None
        if self._language is None:
            heard, languages = window.sequence.logprobs[0].top, self._tokens.languages
            self._language = max(languages, key=lambda name: heard[languages[name]])
            return []
        self._stats.append(window.sequence.stats)
        tokens = output[:-1] if output and output[-1] in window.sequence.stops.end_tokens else output
        frames = min(self._recording.window, self._recording.length - self._seek)
        pieces, advance = [Piece(0, frames // 2, tuple(tokens))], frames
        if self._timed:
            pieces, advance = pieces_of(tokens, self._tokens.first_time, frames)
        nobody = None
        if others and self._tokens.nobody is not None:
            nobody = math.exp(others[0].sequence.logprobs[0].top[self._tokens.nobody])
        over = None
        if self._params.word_timestamps:
            audible = min(self._recording.window, self._recording.frames - self._seek)
            over = self._aligner.times(self._source, begun, output, audible)
        new = self._segments_of(pieces, window.sequence.logprobs, nobody, over)
        for piece in pieces:
            self._kept += piece.tokens
            self._said += self._bytes_of(piece.tokens)
        self._segments += new
        self._seek += advance
        self._source = None
        self._done = not self._timed or self._seek >= self._recording.frames
        return new

    def text_so_far(self, tokens: Sequence[int]) -> str:
        """The text that is final when the window has said ``tokens`` so far."""
        if self._language is None:
            return ""
        kept = tokens if not self._timed else tokens[: settled(tokens, self._tokens.first_time)]
        text = _text(self._said + self._bytes_of(kept))
        # The rest of a character may be still to come.
        return text.rstrip("\ufffd").rstrip()

    def transcript(self) -> Transcript:
        """What has been written down so far."""
        said, seconds = _text(self._said), self._recording.seconds
        return Transcript(said, self._language or "", seconds, list(self._segments), list(self._stats))

    def _window_sampling(self) -> SamplingParams:
        """Each window's draws are its own."""
        seed = self._sampling.seed
        return self._sampling if seed is None else replace(self._sampling, seed=(seed + len(self._stats)) % 2**64)

    def _rules(self) -> TimestampRules:
        tokens, encoder = self._tokens, self._encoder
        assert tokens.silent is not None
        never = [banned[0] for banned in encoder.never if len(banned) == 1]
        return TimestampRules(
            self._vocab_size, tokens.first_time, tokens.end, tokens.silent, encoder.latest_start, never
        )

    def _prompt(self) -> EncodedPrompt:
        assert self._source is not None
        assert self._language is not None
        before = list[int]()
        if self._params.prompt and self._tokens.before is not None:
            text = " " + self._params.prompt.strip()
            before = self._tokenizer.encode(text, add_special_tokens=False, parse_special=False, field="prompt")
        if self._params.condition_on_previous_text and self._tokens.before is not None:
            before = [*before, *self._kept]
        return speech_prompt(
            self._source,
            self._tokenizer,
            self._tokens,
            self._language,
            SpeechTask(self._params.task),
            self._timed,
            before[-self._longest_before :],
        )

    def _segments_of(
        self,
        pieces: Sequence[Piece],
        logprobs: Sequence[TokenLogprobs],
        nobody: float | None,
        over: NDArray[np.float64] | None,
    ) -> list[Segment]:
        """``over``: when each token of the window was said, where that was asked for."""
        text = _text(b"".join(self._bytes_of(piece.tokens) for piece in pieces)).encode()
        ratio = len(text) / len(zlib.compress(text))
        mean = sum(each.logprob for each in logprobs) / len(logprobs) if logprobs else None
        begun, new, place = self._seek / FRAMES_PER_SECOND, list[Segment](), 0
        for piece in pieces:
            first, place = place, place + len(piece.tokens)
            said = _text(self._bytes_of(piece.tokens))
            if not said and self._timed:
                continue
            start, end = (
                min(begun + time * SECONDS_PER_TIME, self._recording.seconds) for time in (piece.start, piece.end)
            )
            new.append(
                Segment(
                    id=len(self._segments) + len(new),
                    start=round(start, 2),
                    end=round(end, 2),
                    text=said,
                    tokens=piece.tokens,
                    seek=self._seek,
                    temperature=self._sampling.temperature,
                    avg_logprob=mean,
                    compression_ratio=ratio,
                    no_speech_prob=nobody,
                    words=None if over is None else self._words(piece.tokens, first, over, start, end),
                )
            )
        return new

    def _words(
        self, tokens: Sequence[int], first: int, over: NDArray[np.float64], start: float, end: float
    ) -> tuple[Word, ...]:
        """Of tokens from place ``first`` of a window's output on; their times stay between ``start`` and ``end``."""
        said = [(place, text) for place, token in enumerate(tokens, first) if (text := self._bytes_of([token]))]
        words = []
        for span in words_of(said, self._language or ""):
            begun = over[span.places[0] - 1] if span.places[0] else 0.0
            times = np.clip(np.array([begun, over[span.places[-1]]]) + self._seek / FRAMES_PER_SECOND, start, end)
            words.append(Word(span.text.strip(), *(round(float(each), 2) for each in times)))
        return tuple(words)

    def _bytes_of(self, tokens: Sequence[int]) -> bytes:
        """What tokens say, times and special tokens left out."""
        silent, special = self._tokens.silent, self._tokenizer.special_ids
        text = [token for token in tokens if (silent is None or token <= silent) and token not in special]
        return b"".join(map(self._tokenizer.token_bytes, text))


def _text(said: bytes) -> str:
    return said.decode(errors="replace").strip()


def speech_prompt(
    source: EncoderInput,
    tokenizer: Tokenizer,
    tokens: SpeechTokens,
    language: str,
    task: SpeechTask = SpeechTask.TRANSCRIBE,
    timed: bool = False,
    before: Sequence[int] = (),
) -> EncodedPrompt:
    """What a window's output begins with: the text before it, the start token, language and task of a model that knows
    them, and that no times are wanted, unless they are (Radford et al. 2022, figure 1)."""
    ids = [tokens.start]
    if tokens.languages:
        ids += [tokens.languages[language], *([tokens.tasks[task]] if task in tokens.tasks else [])]
    if not timed and tokens.silent is not None:
        ids.append(tokens.silent)
    if before and tokens.before is not None:
        ids = [tokens.before, *before, *ids]
    return EncodedPrompt(tokenizer.decode(ids, skip_special_tokens=False), ids, source, "")
