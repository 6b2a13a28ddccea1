"""From a form with a recording to its transcript, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from headstart.engine.outputs import FinishReason
from headstart.errors import ConfigError, HeadstartError, RequestError
from headstart.sampling.params import SamplingParams
from headstart_server.async_engine import BusyError
from headstart_server.engine_thread import EngineThread
from headstart_server.error_forms import error_body
from headstart_server.generation import failure, tenant_salt
from headstart_server.models import Models, Served
from headstart_server.protocol import GenerationBody
from headstart_server.replies import Reply, event
from headstart_server.settings import ServerSettings
from headstart_speech.async_transcription import AsyncTranscription, WindowError
from headstart_speech.enumerations import SpeechTask, TranscriptFormat
from headstart_speech.formats import as_json, as_srt, as_verbose_json, as_vtt
from headstart_speech.front_doors import transcription
from headstart_speech.params import TranscriptionParams
from headstart_speech.recordings import read_recording
from headstart_speech.vocabulary import SpeechTokens
from headstart_speech.windows import Transcript, Transcription

_FOREIGN = {
    "include[]": "log-probabilities of transcripts are not shown; leave it out",
    "chunking_strategy": "windows follow what is heard; leave it out",
    "known_speaker_names[]": "speakers are not told apart; leave it out",
    "known_speaker_references[]": "speakers are not told apart; leave it out",
}
"""Fields of OpenAI's that ask for what is not there -> what to do instead."""
SAMPLING: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "repetition_penalty": float,
    "beam_width": int,
    "length_penalty": float,
}
"""Fields of ``SamplingParams`` that a form may have, as in vLLM."""
_DECODED_AT_ONCE = 2
"""Files; further ones wait."""
_LONGEST_AT_ONCE = 4
"""Recordings of the longest kind whose features are kept together: an hour takes 200 MB."""
GRANULARITIES = ("word", "segment")
_TRANSCRIBER = "transcriber"
"""Where a model keeps its own."""


@dataclass(frozen=True)
class _Asked:
    """The fields of a request."""

    params: TranscriptionParams
    sampling: SamplingParams
    form: TranscriptFormat
    granularities: list[str]
    """Of times, with ``verbose_json``."""
    stream: bool


class Transcriber:
    """Transcribes and translates with one engine.

    Args:
        engine: of the model.
        settings: the server's limits.
    """

    def __init__(self, engine: EngineThread, settings: ServerSettings) -> None:
        self._engine = engine
        self._llm = engine.llm
        self._settings = settings
        self._decoding = asyncio.Semaphore(_DECODED_AT_ONCE)
        self._seconds = 0.0
        """Of the recordings that are kept."""

    @classmethod
    def of(cls, served: Served) -> Transcriber:
        """A model's: it counts the recordings that are being heard."""
        found = served.llm.beside.get(_TRANSCRIBER)
        if not isinstance(found, cls) or found._engine is not served.engine:
            found = served.llm.beside[_TRANSCRIBER] = cls(served.engine, served.settings)
        return found

    async def answer(self, task: SpeechTask, request: Request, form: FormData) -> Response:
        """The reply to a form, which is closed.

        Raises:
            RequestError: a field is wrong, or the recording too long.
            BusyError: too many requests are waiting.
        """
        try:
            asked, data = self._asked(form, task), await _file(form).read()
        finally:
            await form.close()
        try:
            async with self._decoding:
                work = await asyncio.to_thread(self._begun, asked, data)
            del data, form
            self._keep(work)
            if asked.stream:
                return await self._streamed(work, request)
            async for _ in self._texts(work, request, growing=False):
                pass
            return _reply(work.transcript(), asked, task)
        except WindowError as error:
            return Reply(*_failed(error))

    def _keep(self, work: Transcription) -> None:
        """Count a recording for as long as it is kept.

        Raises:
            BusyError: the others are as long as all together may be.
        """
        seconds, most = work.seconds, _LONGEST_AT_ONCE * self._settings.max_audio_seconds
        if self._seconds and self._seconds + seconds > most:
            raise BusyError(f"recordings of {self._seconds:.0f} seconds are being heard; try again later.")
        self._count(seconds)
        weakref.finalize(work, self._count, -seconds)

    def _count(self, seconds: float) -> None:
        self._seconds += seconds

    def _begun(self, asked: _Asked, data: bytes) -> Transcription:
        recording = read_recording(data, self._settings.max_audio_seconds)
        return transcription(self._llm, recording, asked.params, asked.sampling)

    def _texts(self, work: Transcription, request: Request, growing: bool) -> AsyncGenerator[str, None]:
        """As ``AsyncTranscription.texts``, until the client is gone."""
        decoded = AsyncTranscription(self._engine, work, cache_salt=tenant_salt(request))
        return decoded.texts(growing, lambda answer: self._engine.watched(answer, request))

    async def _streamed(self, work: Transcription, request: Request) -> Response:
        texts = self._texts(work, request, growing=True)
        # Whatever can be refused is, before the reply begins.
        first = await anext(texts, "")

        async def events() -> AsyncIterator[str]:
            shown = ""
            try:
                text = first
                while True:
                    if len(text) > len(shown):
                        yield event({"type": "transcript.text.delta", "delta": text[len(shown) :]})
                        shown = text
                    if (more := await anext(texts, None)) is None:
                        break
                    text = more
                done = as_json(work.transcript())
                yield event({"type": "transcript.text.done", **done})
            except WindowError as error:
                yield event(_failed(error)[0])
            except HeadstartError as error:
                yield event(error_body(str(error), "server_error"))
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _asked(self, form: FormData, task: SpeechTask) -> _Asked:
        _file(form)
        for name, instead in _FOREIGN.items():
            if form.get(name):
                raise RequestError(f"{name} is given; {instead}.", name)
        kind = _text(form, "response_format") or TranscriptFormat.JSON
        if kind not in list(TranscriptFormat):
            raise RequestError(
                f"response_format is {kind!r:.40}; give {', '.join(TranscriptFormat)}.", "response_format"
            )
        form_asked = TranscriptFormat(kind)
        stream = _switch(form, "stream")
        if stream and form_asked.timed:
            raise RequestError(f"{kind} cannot be streamed; leave stream out, or ask for json.", "stream")
        granularities = _granularities(form, form_asked)
        timed = form_asked.timed
        params = TranscriptionParams(
            language=_text(form, "language") or None,
            task=task,
            prompt=_text(form, "prompt"),
            timestamps=timed,
            word_timestamps="word" in granularities,
            speech_probability=form_asked is TranscriptFormat.VERBOSE_JSON,
        )
        numbers = {name: _number(form, name, kind) for name, kind in SAMPLING.items() if _text(form, name)}
        # OpenAI's default, whatever the model's own.
        given = numbers if "beam_width" in numbers else {"temperature": 0.0, **numbers}
        sampling = self._llm.sampling_defaults.params(given, {"max_tokens": None})
        return _Asked(params, sampling, form_asked, granularities, stream)


async def transcribed(task: SpeechTask, request: Request, models: Models) -> Response:
    """The reply to a form, by the model that it names.

    Raises:
        RequestError: the form is wrong, or its model does not hear.
        BusyError: too many requests are waiting.
        NotLoadedError: the model cannot be loaded.
    """
    try:
        if models.only is not None:  # known before its body is read
            _require_hearing(models.only)
        form = await _read_form(request)
        try:
            served = await models.held(_text(form, "model") or None, request)
            _require_hearing(served)
        except BaseException:
            await form.close()
            raise
        return await Transcriber.of(served).answer(task, request, form)
    except ConfigError as error:
        return Reply(error_body(str(error), "server_error"), 501)


def _require_hearing(served: Served) -> None:
    SpeechTokens.of(served.llm.model.config, served.llm.model.tokenizer)


def _file(form: FormData) -> UploadFile:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("there is no file; give the recording as a form's file.", "file")
    return file


def _failed(error: WindowError) -> tuple[dict[str, Any], int]:
    """The body and the status of a reply whose window failed."""
    if error.sample.sequence.finish_reason is FinishReason.ABORT:
        return error_body("the request was ended.", "server_error"), 500
    return failure(GenerationBody(), error.sample, error.answer)


def _reply(transcript: Transcript, asked: _Asked, task: SpeechTask) -> Response:
    match asked.form:
        case TranscriptFormat.TEXT:
            return PlainTextResponse(transcript.text + "\n")
        case TranscriptFormat.SRT:
            return PlainTextResponse(as_srt(transcript.segments))
        case TranscriptFormat.VTT:
            return PlainTextResponse(as_vtt(transcript.segments), media_type="text/vtt")
        case TranscriptFormat.VERBOSE_JSON:
            words, segments = (name in asked.granularities for name in GRANULARITIES)
            return Reply(as_verbose_json(transcript, task, words, segments))
    return Reply(as_json(transcript))


def _granularities(form: FormData, asked: TranscriptFormat) -> list[str]:
    name = "timestamp_granularities[]"
    wanted = [*form.getlist(name), *form.getlist("timestamp_granularities")]
    for each in wanted:
        if each not in GRANULARITIES:
            raise RequestError(f"{name} holds {each!r:.40}; give {' or '.join(GRANULARITIES)}.", name)
    if wanted and asked is not TranscriptFormat.VERBOSE_JSON:
        raise RequestError(f"{name} is given, but {asked} shows no times of its choice; ask for verbose_json.", name)
    return [each for each in wanted if isinstance(each, str)] or ["segment"]


def _number(form: FormData, name: str, kind: Callable[[str], Any]) -> Any:
    text = _text(form, name)
    try:
        return kind(text)
    except ValueError:
        raise RequestError(f"{name} is {text!r:.40}; give a number.", name) from None


def _switch(form: FormData, name: str) -> bool:
    text = _text(form, name).lower()
    if text not in ("", "true", "false", "1", "0"):
        raise RequestError(f"{name} is {text!r:.40}; give true or false.", name)
    return text in ("true", "1")


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise RequestError(f"{name} is a file; give a text.", name)
    return value


async def _read_form(request: Request) -> FormData:
    """The form of a request.

    Raises:
        ConfigError: the package that reads forms is not installed.
        RequestError: the body is no form.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RequestError("the body is no form; send multipart/form-data with the recording as file.", "file")
    try:
        return await request.form(max_files=1, max_fields=40)
    except (HTTPException, ValueError, LookupError) as error:
        reason = error.detail if isinstance(error, HTTPException) else str(error)
        raise RequestError(
            f"the body is no form that can be read ({reason.rstrip('.')}); send multipart/form-data.", "file"
        ) from None
    except AssertionError as error:
        raise ConfigError(
            "forms need the package python-multipart; install it: pip install headstart[audio]."
        ) from error
