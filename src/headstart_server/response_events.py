"""The items of one response and the events in which they are told."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headstart.engine.outputs import FinishReason
from headstart.text.answers.events import Arguments, CallBegun, CallBroken, CallEnded, Event, Text, Thought
from headstart_server.replies import to_json

_CUT_SHORT: dict[FinishReason | None, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.ABORT: "abort",
}
"""Reasons of ``incomplete_details``."""
Item = dict[str, Any]
"""One entry of a response's ``output``."""


class ResponseEvents:
    """The items of one response, and its events in the order in which they are sent. A message stays open to its end,
    calls beside it are told as they come.

    Args:
        head: the response before anything is said.
        tells_thoughts: thoughts are told.
    """

    def __init__(self, head: Mapping[str, Any], tells_thoughts: bool) -> None:
        self._head = dict(head)
        self._tells_thoughts = tells_thoughts
        self._sent = 0
        self._output: list[Item] = []
        """In the order in which they were begun; a call that is none any more is left out in the end."""
        self._message: int | None = None
        self._thought: int | None = None
        self._calls: dict[int, int] = {}
        """Index of a call -> its place in the output."""
        self._broken: set[int] = set()
        """Places in the output."""
        self._logprobs: list[Any] = []
        self._told = 0
        """Log-probabilities sent so far: those of tokens without text wait for the next one."""

    def begin(self) -> Iterator[str]:
        """Before anything is said."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._head)

    def say(self, events: Sequence[Event], logprobs: Sequence[Any]) -> Iterator[str]:
        """What became certain of the answer; ``logprobs``: of the tokens that have come."""
        self._logprobs += logprobs
        for event in events:
            match event:
                case Thought() if self._tells_thoughts:
                    yield from self._think(event.text)
                case Text():
                    yield from self._end_thought("completed")
                    yield from self._write(event.text)
                case CallBegun():
                    yield from self._end_thought("completed")
                    yield from self._call(event)
                case Arguments():
                    item = self._output[self._calls[event.index]]
                    item["arguments"] += event.text
                    yield self._about(self._calls[event.index], "function_call_arguments.delta", delta=event.text)
                case CallEnded():
                    yield from self._end_call(self._calls[event.index])
                case CallBroken():
                    self._broken.add(self._calls[event.index])

    def end(self, reason: FinishReason | None, counts: Mapping[str, Any]) -> Iterator[str]:
        """All is said: closes what is open, and ends the response."""
        status = _status(reason)
        yield from self._end_thought(status)
        if self._message is None and not self._output:
            yield from self._open_message()
        if self._message is not None:
            yield from self._end_message(status)
        yield self._event(f"response.{status}", response=self.finished(reason, counts))

    def finished(self, reason: FinishReason | None, counts: Mapping[str, Any]) -> dict[str, Any]:
        """The response with all that was said."""
        if self._message is None and not self._output:
            for _ in self._open_message():
                pass
        status = _status(reason)
        for item in self._output:
            if item["status"] == "in_progress":
                item["status"] = status
            if item["type"] == "message":
                item["content"][0]["logprobs"] = self._logprobs
        output = [item for place, item in enumerate(self._output) if place not in self._broken]
        return _finished(self._head, output, reason, counts)

    def fail(self, error: Mapping[str, Any]) -> str:
        """The last event of a response that failed; ``error``: the body that another route would answer."""
        detail = error["error"]
        refused = detail["type"] == "invalid_request_error"
        told = {"code": "invalid_prompt" if refused else "server_error", "message": detail["message"]}
        return self._event("response.failed", response=self._head | {"status": "failed", "error": told})

    def _add(self, item: Item, **empty: Any) -> Iterator[str]:
        """A new item of the output; ``empty``: how its fields are told before anything is in them."""
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item | empty)

    def _open_message(self) -> Iterator[str]:
        self._message = len(self._output)
        message = _message(new_id("msg"), "", [], "in_progress")
        yield from self._add(message, content=[])
        yield self._about(self._message, "content_part.added", content_index=0, part=_said("", []))

    def _write(self, text: str) -> Iterator[str]:
        if self._message is None:
            yield from self._open_message()
        assert self._message is not None
        self._output[self._message]["content"][0]["text"] += text
        logprobs, self._told = self._logprobs[self._told :], len(self._logprobs)
        yield self._about(self._message, "output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _end_message(self, status: str) -> Iterator[str]:
        assert self._message is not None
        item = self._output[self._message]
        item["status"] = status
        (said,) = item["content"]
        said["logprobs"] = self._logprobs
        at = self._message
        yield self._about(at, "output_text.done", content_index=0, text=said["text"], logprobs=self._logprobs)
        yield self._about(at, "content_part.done", content_index=0, part=said)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _think(self, text: str) -> Iterator[str]:
        if self._thought is None:
            self._thought = len(self._output)
            content = [{"type": "reasoning_text", "text": ""}]
            item = {"type": "reasoning", "id": new_id("rs"), "status": "in_progress", "summary": [], "content": content}
            yield from self._add(item, content=[])
            yield self._about(self._thought, "content_part.added", content_index=0, part=content[0] | {})
        self._output[self._thought]["content"][0]["text"] += text
        yield self._about(self._thought, "reasoning_text.delta", content_index=0, delta=text)

    def _end_thought(self, status: str) -> Iterator[str]:
        if self._thought is None:
            return
        at, self._thought = self._thought, None
        item = self._output[at]
        item["status"] = status
        (said,) = item["content"]
        yield self._about(at, "reasoning_text.done", content_index=0, text=said["text"])
        yield self._about(at, "content_part.done", content_index=0, part=said)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _call(self, event: CallBegun) -> Iterator[str]:
        self._calls[event.index] = len(self._output)
        call = {"type": "function_call", "id": new_id("fc"), "call_id": event.id, "name": event.name}
        yield from self._add({**call, "arguments": "", "status": "in_progress"})

    def _end_call(self, at: int) -> Iterator[str]:
        item = self._output[at]
        item["status"] = "completed"
        name, arguments = item["name"], item["arguments"]
        yield self._about(at, "function_call_arguments.done", name=name, arguments=arguments)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _about(self, place: int, kind: str, **fields: Any) -> str:
        return self._event(f"response.{kind}", item_id=self._output[place]["id"], output_index=place, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        shown = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return f"event: {kind}\ndata: {to_json(shown)}\n\n"


def _finished(
    head: Mapping[str, Any], output: Sequence[Item], reason: FinishReason | None, counts: Mapping[str, Any]
) -> dict[str, Any]:
    details = _CUT_SHORT.get(reason)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    usage = {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts["completion_tokens_details"].get("reasoning_tokens", 0)},
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


def new_id(prefix: str) -> str:
    """A fresh id of an item."""
    return f"{prefix}_{secrets.token_hex(12)}"
