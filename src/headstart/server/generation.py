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
from headstart.request import Job
from headstart.sampling.structured import StructuredOutputsParams
from headstart.server.access import TENANT, error_body
from headstart.server.choices import GenerationRequest
from headstart.server.engine_thread import EngineThread
from headstart.server.protocol import ChatBody, CompletionBody, Generation
from headstart.server.replies import Reply, event, speculation, usage
from headstart.server.responses import ResponseStream, response_head, whole_response
from headstart.server.responses_protocol import ResponsesBody
from headstart.server.settings import ServerSettings
from headstart.server.tools import ToolStream, plan_tools

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
            answer = await self._engine.submit(generation.jobs)
            (job,) = generation.jobs
            head = response_head(body, job.sequence.params, self._settings.served_name)
            if body.stream:
                events = self._response_events(body, generation, answer, ResponseStream(head), request)
                return StreamingResponse(events, media_type="text/event-stream")
            async with self._engine.watched(answer, request):
                async for _ in answer:
                    pass
            if job.sequence.finish_reason is FinishReason.ERROR:
                return Reply(*_failure(body, job, answer))
            return Reply(whole_response(head, generation.choice(job, 0), usage(generation.jobs, answer.drafter)))

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
        if body.best_of not in (None, body.n or 1):
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

        def make_jobs() -> list[Job]:
            jobs = []
            for index, prompt in enumerate(prompts):
                begun = body.decoder_prompt
                pair = prompt if begun is None else {"encoder_prompt": prompt, "decoder_prompt": begun}
                encoded = self._llm.encode(pair, special)
                jobs += self._llm.jobs(encoded, params, wishes, prompt_index=index, cache_salt=salt)
            return jobs

        await self._compile(params.structured_outputs)
        jobs = await asyncio.to_thread(make_jobs)
        return GenerationRequest(body, jobs, self._tokenizer, False, logprobs, echo=echo, prompt_alone=prompt_alone)

    async def _chat_generation(self, body: ChatBody, request: Request) -> GenerationRequest:
        self.check_model(body.model)
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = body.sampling(self._settings, self._llm.sampling_defaults, most, logprobs)
        plan = plan_tools(body, self._llm.model.chat_template.knows_tools, self._settings.max_tools)
        if plan is not None and plan.structure is not None:
            if params.structured_outputs is not None:
                raise RequestError(
                    "tool_choice forces a call beside another structured output; keep one of them.", "tool_choice"
                )
            params = replace(params, structured_outputs=plan.structure)
        tools = None if body.tool_choice == "none" else body.shown_tools()
        wishes = body.wishes(self._llm.speculation)
        salt, variables = _salt(body, request), body.template_variables()
        await self._compile(params.structured_outputs)
        jobs = await asyncio.to_thread(
            lambda: self._llm.jobs(
                self._llm.encode_chat(body.messages, tools, variables), params, wishes, cache_salt=salt
            )
        )
        return GenerationRequest(body, jobs, self._tokenizer, True, logprobs, tools=plan, prefix=body.echoed())

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
        answer = await self._engine.submit(generation.jobs)
        if generation.body.stream:
            return StreamingResponse(self._events(generation, answer, request), media_type="text/event-stream")
        async with self._engine.watched(answer, request):
            async for _ in answer:
                pass
        for job in generation.jobs:
            if job.sequence.finish_reason is FinishReason.ERROR:
                return Reply(*_failure(generation.body, job, answer))
        choices = [generation.choice(job, place) for place, job in enumerate(generation.jobs)]
        reply = self._head(generation, _new_id(generation), chunk=False)
        return Reply(reply | {"choices": choices, "usage": _usage(generation, answer)} | _of_chat(generation))

    async def _events(self, generation: GenerationRequest, answer: Answer, request: Request) -> AsyncIterator[str]:
        head = self._head(generation, _new_id(generation), chunk=True)
        if generation.body.wants_usage:
            head["usage"] = None
        places = {(job.prompt_index, job.sample): place for place, job in enumerate(generation.jobs)}
        calls = [None if generation.tools is None else ToolStream(generation.tools) for _ in generation.jobs]
        begun = [False] * len(generation.jobs)
        async with self._engine.watched(answer, request):
            if generation.chat:
                for place, job in enumerate(generation.jobs):
                    yield event(
                        head | {"choices": [generation.chunk(place, generation.first_part(job))]} | _of_chat(generation)
                    )
            async for piece in answer:
                place = places[piece.prompt_index, piece.sample]
                if piece.finish_reason is FinishReason.ERROR:
                    yield event(_failure(generation.body, generation.jobs[place], answer)[0])
                    continue
                if not generation.chat and not begun[place] and (generation.echo or generation.body.return_token_ids):
                    yield event(
                        head | {"choices": [generation.chunk(place, generation.first_part(generation.jobs[place]))]}
                    )
                begun[place] = True
                part = generation.part(generation.jobs[place], piece, calls[place])
                if not generation.tells(part, piece):
                    continue
                extra = {}
                if piece.completion is not None:
                    extra["speculation"] = speculation([piece.completion.stats], answer.drafter)
                yield event(head | {"choices": [generation.chunk(place, part, piece)]} | extra)
            if generation.body.wants_usage:
                yield event(head | {"choices": [], "usage": _usage(generation, answer)})
            yield "data: [DONE]\n\n"

    async def _response_events(
        self,
        body: ResponsesBody,
        generation: GenerationRequest,
        answer: Answer,
        stream: ResponseStream,
        request: Request,
    ) -> AsyncIterator[str]:
        (job,) = generation.jobs
        calls = None if generation.tools is None else ToolStream(generation.tools)
        async with self._engine.watched(answer, request):
            for shown in stream.begin():
                yield shown
            async for piece in answer:
                if piece.finish_reason is FinishReason.ERROR:
                    yield stream.fail(_failure(body, job, answer)[0])
                    return
                part = generation.part(job, piece, calls)
                for shown in stream.say(part):
                    yield shown
                if piece.finish_reason is not None:
                    for shown in stream.end(part, str(piece.finish_reason), usage(generation.jobs, answer.drafter)):
                        yield shown

    def _head(self, generation: GenerationRequest, reply_id: str, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if generation.chat else "text_completion"
        return {"id": reply_id, "object": kind, "created": int(time.time()), "model": self._settings.served_name}


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


def _failure(body: Generation, job: Job, answer: Answer) -> tuple[dict[str, Any], int]:
    """The error body for a sample that failed, and the status if the reply has not begun."""
    message = str(job.sequence.error)
    if answer.cut_off:
        return error_body("the server is shutting down.", "server_error", code="closing"), 503
    if answer.out_of_memory:
        return error_body(message, "server_error", code="out_of_memory"), 503
    if answer.expired:
        return error_body(message, "server_error", code="timeout"), 504
    if job.sequence.refused:
        return error_body(message, "invalid_request_error", body.own_name(job.sequence.error_field)), 400
    return error_body(message, "server_error", code="generation_failed"), 500


def _usage(generation: GenerationRequest, answer: Answer) -> dict[str, Any]:
    counts = usage(generation.jobs, answer.drafter)
    return (
        counts | {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
        if generation.prompt_alone
        else counts
    )


def _of_chat(generation: GenerationRequest) -> dict[str, Any]:
    """What a chat's reply says about its prompt, beside the choices."""
    return generation.about_prompt(generation.jobs[0]) if generation.chat else {}


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
    """A salt that keeps requests of different keys apart: they share nothing."""
    return f"{request.scope.get(TENANT, '')}/{body.cache_salt or ''}"


def _new_id(generation: GenerationRequest) -> str:
    return ("chatcmpl-" if generation.chat else "cmpl-") + secrets.token_hex(12)
