"""From the body of a request to its reply, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headstart.async_engine import Answer, BusyError
from headstart.engine.outputs import FinishReason
from headstart.errors import RequestError
from headstart.request import Sample
from headstart.sampling.structured import StructuredOutputsParams
from headstart.server.access import TENANT, error_body
from headstart.server.choices import GenerationRequest
from headstart.server.engine_thread import EngineThread
from headstart.server.protocol import ChatBody, CompletionBody, Generation
from headstart.server.replies import Reply, event, spec_decode_metrics, speculation, usage
from headstart.server.responses import ResponseStream, response_head, whole_response
from headstart.server.responses_protocol import ResponsesBody
from headstart.server.settings import ServerSettings
from headstart.server.tools import tool_rules

_MOST_COMPILING = 32
"""Requests that may wait for their schemas to be compiled."""
_DEFAULT_TOKENS = 16
"""OpenAI's default for a completion's ``max_tokens``, for models without one of their own."""


class Generator:
    """Answers completions, chats and responses with one engine."""

    def __init__(self, engine: EngineThread, settings: ServerSettings) -> None:
        self._engine = engine
        self._llm = engine.llm
        self._settings = settings
        self._tokenizer = engine.llm.model.tokenizer
        # Of their own, so that no other request waits for costly schemas.
        self._compilers = ThreadPoolExecutor(2, "headstart-grammars")
        self._compiling = 0

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """``POST /v1/completions``."""
        with _blaming(body):
            return await self._reply(await self._completion_generation(body, request), request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        with _blaming(body):
            return await self._reply(await self._chat_generation(body, request), request)

    async def respond(self, body: ResponsesBody, request: Request) -> Response:
        """``POST /v1/responses``."""
        chat = body.as_chat()
        with _blaming(body):
            generation = await self._chat_generation(chat, request)
            answer = await self._engine.submit(generation.samples)
            (sample,) = generation.samples
            head = response_head(body, sample.sequence.params, self._settings.served_name)
            if body.stream:
                events = self._response_events(body, generation, answer, ResponseStream(head), request)
                return StreamingResponse(events, media_type="text/event-stream")
            async with self._engine.watched(answer, request):
                async for _ in answer:
                    pass
            if sample.sequence.finish_reason is FinishReason.ERROR:
                return Reply(*failure(body, sample, answer))
            return Reply(whole_response(head, generation.choice(sample, 0), usage(generation.samples, answer.drafter)))

    def check_model(self, name: str | None) -> None:
        """Refuse a name that is none of the model's; None is any model.

        Raises:
            UnknownModelError: it is another name.
        """
        names = self._settings.names
        if name is not None and name not in names:
            raise UnknownModelError(
                f"model {name!r} is not served here; it is {' or '.join(map(repr, names))}.", "model"
            )

    async def _completion_generation(self, body: CompletionBody, request: Request) -> GenerationRequest:
        self.check_model(body.model)
        if body.suffix:
            raise RequestError(
                "suffix is given; this server continues texts and cannot fill in. Leave it out.", "suffix"
            )
        searches = body.use_beam_search or body.beam_width is not None
        if searches and body.best_of is not None and body.beam_width is None:
            body.beam_width = body.best_of
        elif body.best_of not in (None, body.n or 1):
            raise RequestError("best_of is given; ask for n samples and choose among them.", "best_of")
        logprobs, echo = body.logprobs, bool(body.echo)
        prompt_alone = echo and body.max_tokens == 0
        max_tokens = 1 if prompt_alone else body.max_tokens
        params = body.sampling(self._settings, self._llm.sampling_defaults, max_tokens, logprobs, _DEFAULT_TOKENS)
        if echo and logprobs is not None:
            params = replace(params, prompt_logprobs=max(logprobs, params.prompt_logprobs or 0))
        prompts = _prompts(body.prompt)
        if not 0 < len(prompts) <= self._settings.max_prompts:
            raise RequestError(f"{len(prompts)} prompts are given; give 1 to {self._settings.max_prompts}.", "prompt")
        wishes = body.wishes(self._llm.speculation)
        salt, special = _salt(body, request), body.add_special_tokens is not False

        named = {"decoder_prompt": body.decoder_prompt, "src_lang": body.src_lang, "tgt_lang": body.tgt_lang}
        beside = {name: value for name, value in named.items() if value is not None}

        def make_samples() -> list[Sample]:
            samples = []
            for index, prompt in enumerate(prompts):
                encoded = self._llm.encode({"encoder_prompt": prompt, **beside} if beside else prompt, special)
                samples += self._llm.samples(encoded, params, wishes, prompt_index=index, cache_salt=salt)
            return samples

        await self._compile(params.structured_outputs)
        samples = await asyncio.to_thread(make_samples)
        return GenerationRequest(body, samples, self._tokenizer, False, logprobs, echo=echo, prompt_alone=prompt_alone)

    async def _chat_generation(self, body: ChatBody, request: Request) -> GenerationRequest:
        self.check_model(body.model)
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = body.sampling(self._settings, self._llm.sampling_defaults, most, logprobs)
        rules = tool_rules(body, self._llm.model.chat_template.knows_tools, self._settings.max_tools)
        if rules is not None and rules.structure is not None:
            if params.structured_outputs is not None:
                raise RequestError(
                    "tool_choice forces a call beside another structured output; keep one of them.", "tool_choice"
                )
            params = replace(params, structured_outputs=rules.structure)
        tools = None if body.tool_choice == "none" else body.shown_tools()
        wishes = body.wishes(self._llm.speculation)
        salt, variables = _salt(body, request), body.template_variables()
        await self._compile(params.structured_outputs)
        samples = await asyncio.to_thread(
            lambda: self._llm.samples(
                self._llm.encode_chat(body.messages, tools, variables), params, wishes, cache_salt=salt
            )
        )
        continued = body.continued()
        prefix = continued if body.echo else ""
        return GenerationRequest(
            body, samples, self._tokenizer, True, logprobs, tools=rules, prefix=prefix, continued=continued
        )

    async def _compile(self, wanted: StructuredOutputsParams | None) -> None:
        if wanted is None:
            return
        if self._compiling >= _MOST_COMPILING:
            raise BusyError(f"{self._compiling} requests wait for their schemas to be compiled; try again later.")
        self._compiling += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._compilers, self._llm.compile, wanted)
        finally:
            self._compiling -= 1

    async def _reply(self, generation: GenerationRequest, request: Request) -> Response:
        answer = await self._engine.submit(generation.samples)
        if generation.body.stream:
            return StreamingResponse(self._events(generation, answer, request), media_type="text/event-stream")
        async with self._engine.watched(answer, request):
            async for _ in answer:
                pass
        for sample in generation.samples:
            if sample.sequence.finish_reason is FinishReason.ERROR:
                return Reply(*failure(generation.body, sample, answer))
        choices = [generation.choice(sample, place) for place, sample in enumerate(generation.samples)]
        reply = self._head(generation, _new_id(generation), chunk=False)
        told = {"choices": choices, "usage": _usage(generation, answer)} | self._metrics(generation)
        return Reply(reply | told | _of_chat(generation))

    async def _events(self, generation: GenerationRequest, answer: Answer, request: Request) -> AsyncIterator[str]:
        head = self._head(generation, _new_id(generation), chunk=True)
        if generation.body.wants_usage:
            head["usage"] = None
        places = {(sample.prompt_index, sample.index): place for place, sample in enumerate(generation.samples)}
        calls = [generation.parser(sample) for sample in generation.samples]
        begun = [False] * len(generation.samples)
        async with self._engine.watched(answer, request):
            if generation.chat:
                for place, sample in enumerate(generation.samples):
                    yield event(
                        head
                        | {"choices": [generation.chunk(place, generation.first_part(sample))]}
                        | _of_chat(generation)
                    )
            async for piece in answer:
                place = places[piece.prompt_index, piece.sample]
                if piece.finish_reason is FinishReason.ERROR:
                    yield event(failure(generation.body, generation.samples[place], answer)[0])
                    continue
                if not generation.chat and not begun[place] and (generation.echo or generation.body.return_token_ids):
                    yield event(
                        head | {"choices": [generation.chunk(place, generation.first_part(generation.samples[place]))]}
                    )
                begun[place] = True
                part = generation.part(generation.samples[place], piece, calls[place])
                if not generation.tells(part, piece):
                    continue
                extra = {}
                if piece.completion is not None:
                    extra["speculation"] = speculation([piece.completion.stats], answer.drafter)
                yield event(head | {"choices": [generation.chunk(place, part, piece, calls[place])]} | extra)
            if generation.body.wants_usage:
                last = {"choices": [], "usage": _usage(generation, answer)} | self._metrics(generation)
                yield event(head | last)
            yield "data: [DONE]\n\n"

    async def _response_events(
        self,
        body: ResponsesBody,
        generation: GenerationRequest,
        answer: Answer,
        stream: ResponseStream,
        request: Request,
    ) -> AsyncIterator[str]:
        (sample,) = generation.samples
        calls = generation.parser(sample)
        async with self._engine.watched(answer, request):
            for shown in stream.begin():
                yield shown
            async for piece in answer:
                if piece.finish_reason is FinishReason.ERROR:
                    yield stream.fail(failure(body, sample, answer)[0])
                    return
                part = generation.part(sample, piece, calls)
                for shown in stream.say(part):
                    yield shown
                if piece.finish_reason is not None:
                    for shown in stream.end(str(piece.finish_reason), usage(generation.samples, answer.drafter)):
                        yield shown

    def _metrics(self, generation: GenerationRequest) -> dict[str, Any]:
        """How guesses fared, if that is wanted and there is one sample whose guesses they were (as in vLLM)."""
        if len(generation.samples) > 1 or not generation.body.wants_spec_decode_metrics(self._settings):
            return {}
        counts = spec_decode_metrics(generation.samples[0].sequence.stats)
        return {} if counts is None else {"metrics": {"speculative_decoding": counts}}

    def _head(self, generation: GenerationRequest, reply_id: str, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if generation.chat else "text_completion"
        return {"id": reply_id, "object": kind, "created": int(time.time()), "model": self._settings.served_name}


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


def failure(body: Generation, sample: Sample, answer: Answer) -> tuple[dict[str, Any], int]:
    """The error body for a sample that failed, and the status if the reply has not begun."""
    message = str(sample.sequence.error)
    if answer.cut_off:
        return error_body("the server is shutting down.", "server_error", code="closing"), 503
    if answer.out_of_memory:
        return error_body(message, "server_error", code="out_of_memory"), 503
    if answer.expired:
        return error_body(message, "server_error", code="timeout"), 504
    if sample.sequence.refused:
        return error_body(message, "invalid_request_error", body.own_name(sample.sequence.error_field)), 400
    return error_body(message, "server_error", code="generation_failed"), 500


def _usage(generation: GenerationRequest, answer: Answer) -> dict[str, Any]:
    counts = usage(generation.samples, answer.drafter)
    return (
        counts | {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
        if generation.prompt_alone
        else counts
    )


def _of_chat(generation: GenerationRequest) -> dict[str, Any]:
    """What a chat's reply says about its prompt, beside the choices."""
    return generation.about_prompt(generation.samples[0]) if generation.chat else {}


@contextmanager
def _blaming(body: Generation) -> Iterator[None]:
    """Let a refusal name the field as this request does, where the engine has another name for it."""
    try:
        yield
    except RequestError as error:
        error.field = body.own_name(error.field)
        raise


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """One text, one list of token ids, or several of either, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(token, int) for token in prompt):
        return [list(prompt)]
    return prompt


def _salt(body: Generation, request: Request) -> str:
    return tenant_salt(request, body.cache_salt or "")


def tenant_salt(request: Request, own: str = "") -> str:
    """A salt that keeps requests of different keys apart: they share nothing; ``own``: the request's."""
    return f"{request.scope.get(TENANT, '')}/{own}"


def _new_id(generation: GenerationRequest) -> str:
    return ("chatcmpl-" if generation.chat else "cmpl-") + secrets.token_hex(12)
