"""``POST /v1/audio/transcriptions``: what a recording says, by a model whose encoder reads audio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headstart.audio import read_recording, source_of_audio
from headstart.engine.outputs import FinishReason
from headstart.errors import ConfigError, RequestError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes import EncoderInput
from headstart.request import EncodedPrompt, Sample
from headstart.sampling.params import SamplingParams
from headstart.server.access import error_body
from headstart.server.engine_thread import EngineThread
from headstart.server.generation import failure, tenant_salt
from headstart.server.protocol import Generation
from headstart.server.replies import Reply
from headstart.text.tokenizer import Tokenizer

_FORMATS = ("json", "text", "verbose_json")
_IDLE = ("stream", "timestamp_granularities[]", "include[]", "chunking_strategy")
"""OpenAI's fields that ask for what is not there."""
MULTILINGUAL = 51_865
"""Whisper's vocabularies of so many tokens or more know languages and tasks (openai/whisper, ``model.py``)."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "WAV, FLAC, Ogg or MP3."},
                        "model": {"type": "string"},
                        "language": {"type": "string", "description": "As de; left out: the model's choice."},
                        "prompt": {"type": "string", "description": "A text that came before."},
                        "response_format": {"type": "string", "enum": list(_FORMATS)},
                        "temperature": {"type": "number"},
                    },
                }
            }
        },
    }
}
"""The body, for the OpenAPI document."""


class _FailedError(Exception):
    """A transcription failed while it was decoded."""

    def __init__(self, body: dict[str, Any], status: int) -> None:
        super().__init__(status)
        self.body = body
        self.status = status


@dataclass(frozen=True)
class _Asked:
    """The fields of a request."""

    data: bytes
    language: str | None
    before: str
    form: str
    temperature: float


class Transcriber:
    """Transcribes with one engine.

    Args:
        engine: of the model.
    """

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._llm = engine.llm

    async def transcribe(self, request: Request, check_model: Callable[[str | None], None]) -> Response:
        """The reply to a form; ``check_model`` refuses the name of a model that is not served.

        Raises:
            RequestError: a field is wrong, or the recording too long.
            BusyError: too many requests are waiting.
        """
        try:
            form = await _read_form(request)
            try:
                check_model(_text(form, "model") or None)
                return await self._transcribed(form, request, tenant_salt(request))
            finally:
                await form.close()
        except ConfigError as error:
            return Reply(error_body(str(error), "server_error"), 501)
        except _FailedError as error:
            return Reply(error.body, error.status)

    async def _transcribed(self, form: FormData, request: Request, salt: str) -> Response:
        model = self._llm.model
        encoder, tokenizer = model.config.encoder, model.tokenizer
        if encoder is None or encoder.mel_bins is None:
            raise RequestError("this server's model reads no audio; serve a Whisper.", "model")
        asked = await _asked(form)
        samples, rate = await asyncio.to_thread(read_recording, asked.data)
        source = await asyncio.to_thread(source_of_audio, (samples, rate), encoder)
        language, knows = asked.language, model.config.vocab_size >= MULTILINGUAL
        languages = _languages(tokenizer, _start(encoder)) if knows else {}
        if language is not None and knows and language not in languages:
            raise RequestError(
                f"language is {language!r}, which the model does not know; give one as 'de'.", "language"
            )
        if language is None and languages:
            heard = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=tuple(languages.values()))
            begun = EncodedPrompt("", [_start(encoder)], source, "")
            found = await self._run(begun, heard, request, salt)
            language = next(name for name, token in languages.items() if token == found.sequence.output[0])
        prompt = transcription_prompt(source, tokenizer, encoder, languages.get(language or ""), asked.before)
        params = replace(self._llm.get_default_sampling_params(), temperature=asked.temperature, n=1)
        said = (await self._run(prompt, params, request, salt)).completion()
        text = said.text.strip()
        if asked.form == "text":
            return PlainTextResponse(text + "\n")
        reply: dict[str, Any] = {"text": text}
        if asked.form == "verbose_json":
            seconds = len(samples) / rate
            reply |= {"task": "transcribe", "language": language or "en", "duration": round(seconds, 3)}
        return Reply(reply)

    async def _run(self, prompt: EncodedPrompt, params: SamplingParams, request: Request, salt: str) -> Sample:
        (sample,) = await asyncio.to_thread(lambda: self._llm.samples(prompt, params, cache_salt=salt))
        answer = await self._engine.submit([sample])
        async with self._engine.watched(answer, request):
            async for _ in answer:
                pass
        if sample.sequence.finish_reason is FinishReason.ERROR:
            raise _FailedError(*failure(Generation(), sample, answer))
        return sample


def transcription_prompt(
    source: EncoderInput, tokenizer: Tokenizer, encoder: EncoderConfig, language: int | None, before: str = ""
) -> EncodedPrompt:
    """What a transcription begins with: the text before it, the start token, language and task of a model that knows
    them, and that no times are wanted (Radford et al. 2022, figure 1)."""
    names = tokenizer.vocabulary
    ids = [_start(encoder)]
    if language is not None:
        ids += [language, names["<|transcribe|>"]]
    if "<|notimestamps|>" in names:
        ids.append(names["<|notimestamps|>"])
    if before and "<|startofprev|>" in names:
        read = tokenizer.encode(" " + before.strip(), add_special_tokens=False, parse_special=False, field="prompt")
        ids = [names["<|startofprev|>"], *read[-_MOST_BEFORE:], *ids]
    return EncodedPrompt(tokenizer.decode(ids, skip_special_tokens=False), ids, source, "")


_MOST_BEFORE = 223
"""Tokens of the text before a transcription: half of the decoder's context, less one."""


def _start(encoder: EncoderConfig) -> int:
    if encoder.start_token_id is None:
        raise RequestError("the model's files do not say what outputs begin with (decoder_start_token_id).", "model")
    return encoder.start_token_id


def _languages(tokenizer: Tokenizer, start: int) -> dict[str, int]:
    """Language -> its token; they stand behind the start token."""
    added = [(token, text) for token, (text, _) in tokenizer.added_tokens.items() if token > start]
    return {found[1]: token for token, text in added if (found := _LANGUAGE.fullmatch(text))}


async def _asked(form: FormData) -> _Asked:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("there is no file; give the recording as a form's file.", "file")
    for name in _IDLE:
        if form.get(name) not in (None, "", "false", "False", "segment"):
            raise RequestError(f"{name} is given, which is not supported; leave it out.", name)
    kind = _text(form, "response_format") or "json"
    if kind not in _FORMATS:
        raise RequestError(f"response_format is {kind!r}; give {', '.join(_FORMATS)}.", "response_format")
    warmth = _text(form, "temperature") or "0"
    try:
        temperature = float(warmth)
    except ValueError:
        raise RequestError(f"temperature is {warmth!r:.40}; give a number.", "temperature") from None
    return _Asked(await file.read(), _text(form, "language") or None, _text(form, "prompt"), kind, temperature)


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
        return await request.form(max_files=1, max_fields=20)
    except AssertionError as error:
        raise ConfigError(
            "forms need the package python-multipart; install it: pip install headstart[audio]."
        ) from error
