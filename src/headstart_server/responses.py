"""The form of ``POST /v1/responses``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from headstart.entrypoints.request import StreamPiece
from headstart.sampling.params import SamplingParams
from headstart_server.conversations import ConversationForm
from headstart_server.response_events import ResponseEvents, new_id
from headstart_server.responses_protocol import ResponsesBody


class ResponseForm(ConversationForm[ResponsesBody]):
    """A conversation given as items; it is read as a chat, and its answer told as items."""

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """A response with all that was said."""
        (sample,) = self.samples
        done = sample.completion()
        for _ in self._events.say(self.chat.all_events(0, done), self.chat.logprobs_of(done)):
            pass
        return self._events.finished(done.finish_reason, self.chat.usage(drafter))

    def head(self) -> Iterator[str]:
        """The response before anything is said."""
        yield from self._events.begin()

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """What was said as it comes; with the last piece all the rest."""
        yield from self._events.say(*self.events(place, piece))
        if piece.finish_reason is not None:
            yield from self._events.end(piece.finish_reason, self.chat.usage(drafter))

    def failed(self, error: Mapping[str, Any]) -> str:
        """As for every form."""
        return self._events.fail(error)

    @cached_property
    def _head(self) -> dict[str, Any]:
        return _response_head(self.body, self.params, self.settings.served_name)

    @cached_property
    def _events(self) -> ResponseEvents:
        return ResponseEvents(self._head, self.chat.tells_thoughts)


def _response_head(body: ResponsesBody, params: SamplingParams, model: str) -> dict[str, Any]:
    """A response before anything is said: what was asked for, as it was understood."""
    asked = None if body.text is None or body.text.format is None else body.text.format
    choice = body.tool_choice
    return {
        "id": new_id("resp"),
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
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
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
