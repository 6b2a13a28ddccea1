"""The form of ``POST /v1/responses``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from headstart.engine.outputs import FinishReason
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.sampling.params import SamplingParams
from headstart.server.chats import ChatForm
from headstart.server.forms import Form
from headstart.server.replies import to_json
from headstart.server.responses_protocol import ResponsesBody

_CUT_SHORT: dict[FinishReason | None, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.ABORT: "abort",
}
"""Reasons of ``incomplete_details``."""
Item = dict[str, Any]
"""One entry of a response's ``output``."""


class ResponseForm(Form[ResponsesBody]):
    """A conversation given as items; it is read as a chat, and its answer told as items."""

    def read(self) -> SamplingParams:
        """As for every form."""
        self._chat = ChatForm(self.body.as_chat(), self.llm, self.settings)
        return self._chat.params

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        self._chat.samples = self._chat.make_samples(salt)
        return self._chat.samples

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """A response with all that was said."""
        (sample,) = self.samples
        done = sample.completion()
        choice, status = self._chat.choice(0, sample, done), _status(done.finish_reason)
        message = choice["message"]
        calls = message.get("tool_calls", ())
        output: list[Item] = []
        if message["content"] or not calls:
            output.append(_message(_new_id("msg"), message["content"] or "", _entries(choice), status))
        output += [_call(call, status) for call in calls]
        return _finished(self._head, output, done.finish_reason, self._chat.usage(drafter))

    def head(self) -> Iterator[str]:
        """The response before anything is said."""
        yield from self._events.begin()

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """Text as it comes; with the last piece all the rest."""
        yield from self._events.say(self._chat.part(place, piece))
        if piece.finish_reason is not None:
            yield from self._events.end(piece.finish_reason, self._chat.usage(drafter))

    def failed(self, error: Mapping[str, Any]) -> str:
        """As for every form."""
        return self._events.fail(error)

    @cached_property
    def _head(self) -> dict[str, Any]:
        return _response_head(self.body, self.params, self.settings.served_name)

    @cached_property
    def _events(self) -> _ResponseEvents:
        return _ResponseEvents(self._head)


class _ResponseEvents:
    """The events of one response, in the order in which they are sent."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = dict(head)
        self._sent = 0
        self._message_id = ""
        """Of the message that is being said; empty before it begins."""
        self._text = ""
        self._logprobs: list[Any] = []
        self._calls: list[Mapping[str, Any]] = []
        self._told = 0
        """Log-probabilities sent so far: those of tokens without text wait for the next one."""

    def begin(self) -> Iterator[str]:
        """Before anything is said."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._head)

    def say(self, part: Mapping[str, Any]) -> Iterator[str]:
        """A chunk of a chat, as far as it is text; its calls wait for the end."""
        self._logprobs += _entries(part)
        self._calls += part["delta"].get("tool_calls", ())
        delta = part["delta"].get("content") or ""
        if not delta:
            return
        yield from self._open()
        self._text += delta
        logprobs, self._told = self._logprobs[self._told :], len(self._logprobs)
        yield self._about_text("response.output_text.delta", delta=delta, logprobs=logprobs)

    def end(self, reason: FinishReason | None, counts: Mapping[str, Any]) -> Iterator[str]:
        """All is said: closes what is open, tells the calls, and ends the response."""
        calls, status = self._calls, _status(reason)
        output: list[Item] = []
        if not calls:
            yield from self._open()
        if self._message_id:
            message = _message(self._message_id, self._text, self._logprobs, status)
            (said,) = message["content"]
            yield self._about_text("response.output_text.done", text=self._text, logprobs=self._logprobs)
            yield self._about_text("response.content_part.done", part=said)
            yield self._event("response.output_item.done", output_index=0, item=message)
            output.append(message)
        for each in calls:
            call, place = _call(each, status), len(output)
            at = {"output_index": place, "item_id": call["id"]}
            begun = call | {"arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=place, item=begun)
            yield self._event("response.function_call_arguments.delta", **at, delta=call["arguments"])
            yield self._event(
                "response.function_call_arguments.done", **at, name=call["name"], arguments=call["arguments"]
            )
            yield self._event("response.output_item.done", output_index=place, item=call)
            output.append(call)
        yield self._event(f"response.{status}", response=_finished(self._head, output, reason, counts))

    def fail(self, error: Mapping[str, Any]) -> str:
        """The last event of a response that failed; ``error``: the body that another route would answer."""
        detail = error["error"]
        refused = detail["type"] == "invalid_request_error"
        told = {"code": "invalid_prompt" if refused else "server_error", "message": detail["message"]}
        return self._event("response.failed", response=self._head | {"status": "failed", "error": told})

    def _open(self) -> Iterator[str]:
        """Begins the message, if nothing of it was said yet."""
        if self._message_id:
            return
        self._message_id = _new_id("msg")
        item = {"type": "message", "id": self._message_id, "status": "in_progress", "role": "assistant", "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._about_text("response.content_part.added", part=_said("", []))

    def _about_text(self, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=self._message_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        shown = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return f"event: {kind}\ndata: {to_json(shown)}\n\n"


def _response_head(body: ResponsesBody, params: SamplingParams, model: str) -> dict[str, Any]:
    """A response before anything is said: what was asked for, as it was understood."""
    asked = None if body.text is None or body.text.format is None else body.text.format
    choice = body.tool_choice
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"} if asked is None else asked.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _finished(
    head: Mapping[str, Any], output: Sequence[Item], reason: FinishReason | None, counts: Mapping[str, Any]
) -> dict[str, Any]:
    details = _CUT_SHORT.get(reason)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    usage = {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
        "speculation": counts["speculation"],
    }
    return {
        **head,
        "status": _status(reason),
        "incomplete_details": None if details is None else {"reason": details},
        "output": list(output),
        "usage": usage,
    }


def _status(reason: FinishReason | None) -> str:
    return "completed" if reason is FinishReason.STOP else "incomplete"


def _message(item_id: str, text: str, logprobs: Sequence[Any], status: str) -> Item:
    content = [_said(text, logprobs)]
    return {"type": "message", "id": item_id, "status": status, "role": "assistant", "content": content}


def _said(text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _call(call: Mapping[str, Any], status: str) -> Item:
    """A call as an item; ``call`` is in a chat's form."""
    return {
        "type": "function_call",
        "id": _new_id("fc"),
        "call_id": call["id"],
        "name": call["function"]["name"],
        "arguments": call["function"]["arguments"],
        "status": status,
    }


def _entries(part: Mapping[str, Any]) -> list[Any]:
    """The log-probabilities of a chat's choice or chunk, token by token."""
    logprobs = part.get("logprobs")
    return [] if logprobs is None else list(logprobs["content"])


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
