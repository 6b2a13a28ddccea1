"""From the body of a request to its reply, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs
from headstart.errors import RequestError
from headstart.request import Job, StreamPiece
from headstart.server.doors import TENANT, error_body
from headstart.server.engine_thread import Answer, EngineThread
from headstart.server.protocol import ChatBody, CompletionBody, Generation, Speculation
from headstart.server.replies import Reply, chat_logprobs, completion_logprobs, event, speculation, stop_reason, usage
from headstart.server.settings import ServerSettings
from headstart.server.tools import ToolCall, ToolPlan, ToolStream, plan_tools
from headstart.text.detokenizer import IncrementalDetokenizer

_DEFAULT_TOKENS = 16
"""Output tokens of a completion that names no number, as OpenAI has it."""


@dataclass(frozen=True)
class Wish:
    """One request, understood."""

    body: Generation
    jobs: list[Job]
    chat: bool
    echo: bool
    logprobs: int | None
    tools: ToolPlan | None = None
    prompt_alone: bool = False
    """Nothing but the echo is wanted: the one token that the engine says is left out."""


class Generator:
    """Answers generation requests with one engine."""

    def __init__(self, engine: EngineThread, settings: ServerSettings) -> None:
        self._engine = engine
        self._llm = engine.llm
        self._settings = settings

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """``POST /v1/completions``."""
        self.check_model(body.model)
        if body.suffix:
            raise RequestError("suffix is given; this server continues texts and cannot fill in. Leave it out.")
        if body.best_of not in (None, body.n or 1):
            raise RequestError("best_of is given; ask for n samples and choose among them.")
        logprobs, echo = body.logprobs, bool(body.echo)
        if echo and body.stream and logprobs is not None:
            raise RequestError("echo with logprobs cannot be streamed; leave stream out.")
        max_tokens = _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        prompt_alone = echo and max_tokens == 0 and not body.stream
        if prompt_alone:
            max_tokens = 1
        params = body.sampling(self._settings, max_tokens, logprobs)
        prompts = _prompts(body.prompt)
        if not 0 < len(prompts) <= self._settings.max_prompts:
            raise RequestError(f"{len(prompts)} prompts are given; give 1 to {self._settings.max_prompts}.")
        wishes = (body.speculation or Speculation()).params(self._llm.speculation)
        salt = _salt(body, request)

        def make_jobs() -> list[Job]:
            jobs = []
            for index, prompt in enumerate(prompts):
                jobs += self._llm.jobs(
                    self._llm.encode(prompt),
                    params,
                    wishes,
                    prompt_index=index,
                    cache_salt=salt,
                    prompt_logprobs=logprobs if echo else None,
                )
            return jobs

        jobs = await asyncio.to_thread(make_jobs)
        wish = Wish(body, jobs, chat=False, echo=echo, logprobs=logprobs, prompt_alone=prompt_alone)
        return await self._reply(wish, request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        self.check_model(body.model)
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = body.sampling(self._settings, most, logprobs)
        plan = plan_tools(body, self._llm.model.chat_template.knows_tools, self._settings.max_tools)
        if plan is not None and plan.structure is not None:
            if params.structured_outputs is not None:
                raise RequestError("tool_choice forces a call beside another structured output; keep one of them.")
            params = replace(params, structured_outputs=plan.structure)
        offered = None if body.tool_choice == "none" else body.tools
        tools = None if offered is None else [tool.model_dump(exclude_unset=True) for tool in offered]
        wishes = (body.speculation or Speculation()).params(self._llm.speculation)
        salt = _salt(body, request)
        jobs = await asyncio.to_thread(
            lambda: self._llm.jobs(
                self._llm.encode_chat(body.messages, tools, body.chat_template_kwargs), params, wishes, cache_salt=salt
            )
        )
        return await self._reply(Wish(body, jobs, chat=True, echo=False, logprobs=logprobs, tools=plan), request)

    def check_model(self, name: str | None) -> None:
        """Refuse a name that is not the model's.

        Raises:
            UnknownModelError: it is not.
        """
        if name is not None and name != self._settings.served_name:
            raise UnknownModelError(f"model {name!r} is not served here; it is {self._settings.served_name!r}.")

    async def _reply(self, wish: Wish, request: Request) -> Response:
        answer = await self._engine.submit(wish.jobs)
        if wish.body.stream:
            return StreamingResponse(self._events(wish, answer, request), media_type="text/event-stream")
        async with self._engine.watched(answer, request):
            async for _ in answer:
                pass
        for job in wish.jobs:
            if job.sequence.finish_reason is FinishReason.ERROR:
                return Reply(*_failure(job, answer))
        choices = [self._choice(wish, job, place) for place, job in enumerate(wish.jobs)]
        counts = usage(wish.jobs, answer.drafter)
        if wish.prompt_alone:
            counts |= {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
        return Reply(self._head(wish, _new_id(wish), chunk=False) | {"choices": choices, "usage": counts})

    async def _events(self, wish: Wish, answer: Answer, request: Request) -> AsyncIterator[str]:
        head = self._head(wish, _new_id(wish), chunk=True)
        if wish.body.wants_usage:
            head["usage"] = None
        places = {(job.prompt_index, job.sample): place for place, job in enumerate(wish.jobs)}
        calls = [None if wish.tools is None else ToolStream(wish.tools) for _ in wish.jobs]
        async with self._engine.watched(answer, request):
            for place, job in enumerate(wish.jobs):
                if wish.chat:
                    yield event(head | {"choices": [_chunk(place, {"delta": {"role": "assistant", "content": ""}})]})
                elif wish.echo:
                    yield event(head | {"choices": [_chunk(place, {"text": self._prompt_text(job)})]})
            async for piece in answer:
                place = places[piece.prompt_index, piece.sample]
                if piece.finish_reason is FinishReason.ERROR:
                    yield event(_failure(wish.jobs[place], answer)[0])
                    continue
                part = self._part(wish, piece, calls[place])
                if piece.finish_reason is None and not _says(part) and wish.logprobs is None:
                    continue
                extra = {}
                if piece.completion is not None:
                    extra["speculation"] = speculation([piece.completion.stats], answer.drafter)
                yield event(head | {"choices": [_chunk(place, part, piece, wish.tools)]} | extra)
            if wish.body.wants_usage:
                yield event(head | {"choices": [], "usage": usage(wish.jobs, answer.drafter)})
            yield "data: [DONE]\n\n"

    def _head(self, wish: Wish, reply_id: str, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if wish.chat else "text_completion"
        return {"id": reply_id, "object": kind, "created": int(time.time()), "model": self._settings.served_name}

    def _part(self, wish: Wish, piece: StreamPiece, calls: ToolStream | None) -> dict[str, Any]:
        tokenizer = self._llm.model.tokenizer
        part: dict[str, Any] = {"text": piece.text}
        if wish.chat:
            part = {"delta": {"content": piece.text} if calls is None else _delta(calls, piece)}
        if wish.logprobs is not None:
            part["logprobs"] = (
                chat_logprobs(tokenizer, piece.logprobs)
                if wish.chat
                else completion_logprobs(tokenizer, piece.logprobs, piece.token_ids, piece.text_offsets)
            )
        return part

    def _choice(self, wish: Wish, job: Job, place: int) -> dict[str, Any]:
        tokenizer, done = self._llm.model.tokenizer, job.completion()
        if wish.prompt_alone:
            nothing: list[TokenLogprobs] | None = None if done.logprobs is None else []
            done = Completion(done.index, "", [], FinishReason.LENGTH, done.stats, [], nothing)
        logprobs: dict[str, Any] | None = None
        called: list[ToolCall] = []
        if wish.chat:
            if done.logprobs is not None:
                logprobs = chat_logprobs(tokenizer, done.logprobs)
            text, called = (done.text, called) if wish.tools is None else wish.tools.read(done.text)
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if called:
                message |= {"content": text.strip() or None, "tool_calls": [call.as_openai() for call in called]}
            said: dict[str, Any] = {"message": message}
        else:
            prompt = self._prompt_text(job) if wish.echo else ""
            if done.logprobs is not None:
                sequence = job.sequence
                first: list[TokenLogprobs | None] = [None, *sequence.prompt_logprobs] if wish.echo else []
                prompt_ids = sequence.tokens[: sequence.prompt_length] if wish.echo else []
                echoed = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
                echoed.extend(prompt_ids)
                offsets = [*echoed.offsets, *(len(prompt) + offset for offset in job.text_offsets)]
                tokens = [*prompt_ids, *done.token_ids]
                entries = [*first, *done.logprobs]
                logprobs = completion_logprobs(tokenizer, entries, tokens, offsets[: len(tokens)])
            said = {"text": prompt + done.text}
        return {
            "index": place,
            **said,
            "logprobs": logprobs,
            "finish_reason": _finish_reason(done.finish_reason, wish.tools, bool(called)),
            "stop_reason": stop_reason(done),
        }

    def _prompt_text(self, job: Job) -> str:
        sequence = job.sequence
        return self._llm.model.tokenizer.decode(sequence.tokens[: sequence.prompt_length], skip_special_tokens=False)


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


def _failure(job: Job, answer: Answer) -> tuple[dict[str, Any], int]:
    """What to say of a sample that ended with an error, and the status of a reply that has not begun."""
    message = str(job.sequence.error)
    if answer.expired:
        return error_body(message, "server_error", code="timeout"), 504
    if job.sequence.refused:
        return error_body(message, "invalid_request_error"), 400
    return error_body(message, "server_error", code="generation_failed"), 500


def _chunk(
    place: int, part: dict[str, Any], piece: StreamPiece | None = None, tools: ToolPlan | None = None
) -> dict[str, Any]:
    chunk = {"index": place, "logprobs": None, **part, "finish_reason": None}
    if piece is not None and piece.finish_reason is not None:
        chunk["finish_reason"] = _finish_reason(piece.finish_reason, tools, "tool_calls" in part.get("delta", {}))
        chunk["stop_reason"] = stop_reason(piece.completion)
    return chunk


def _delta(calls: ToolStream, piece: StreamPiece) -> dict[str, Any]:
    shown = calls.feed(piece.text)
    if piece.finish_reason is None:
        return {"content": shown}
    rest, called = calls.finish()
    if not called:
        return {"content": shown + rest}
    return {
        "content": shown + rest or None,
        "tool_calls": [{"index": index, **call.as_openai()} for index, call in enumerate(called)],
    }


def _says(part: dict[str, Any]) -> bool:
    return bool(part.get("text") or any(part.get("delta", {}).values()))


def _finish_reason(reason: FinishReason, tools: ToolPlan | None, called: bool) -> str:
    """OpenAI's word for it: "tool_calls" where the model chose to call, "stop" where it had to call this function."""
    if called and reason is FinishReason.STOP and (tools is None or tools.named is None):
        return "tool_calls"
    return str(reason)


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """One text, one list of token ids, or several of either, as several."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(token, int) for token in prompt):
        return [list(prompt)]
    return prompt


def _salt(body: Generation, request: Request) -> str:
    """Requests of different keys share nothing."""
    return f"{request.scope.get(TENANT, '')}/{body.cache_salt or ''}"


def _new_id(wish: Wish) -> str:
    return ("chatcmpl-" if wish.chat else "cmpl-") + secrets.token_hex(12)
