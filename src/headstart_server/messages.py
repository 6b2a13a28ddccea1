"""The form of ``POST /v1/messages``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from headstart.engine.outputs import Completion, FinishReason
from headstart.entrypoints.request import StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.answers.events import Arguments, CallBegun, CallBroken, CallEnded, Event, Text, Thought
from headstart_server.conversations import ConversationForm, fields_of
from headstart_server.messages_protocol import MessagesBody
from headstart_server.replies import to_json

_SIGNATURE = ""
"""Of a thought: nothing vouches for it, and none is asked for when it comes back."""


class MessageForm(ConversationForm[MessagesBody]):
    """Anthropic's: the answer is a message of blocks."""

    def read(self) -> SamplingParams:
        """As for every form."""
        if self.body.n not in (None, 1):
            raise RequestError(f"n is {self.body.n}; a message is one answer, so leave it out.", "n")
        if self.body.thinking is not None and self.llm.answers.thought_marks is None:
            # Clients ask every model to think; one that does not has nothing to be bounded.
            self.body.thinking.budget_tokens = None
        return super().read()

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """A message with all its blocks."""
        (sample,) = self.samples
        done = sample.completion()
        answer, _ = self.answer(done)
        content: list[dict[str, Any]] = []
        if answer.thought:
            content.append({"type": "thinking", "thinking": answer.thought, "signature": _SIGNATURE})
        if answer.text:
            content.append({"type": "text", "text": answer.text, "citations": None})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": fields_of(call)} for call in answer.calls
        ]
        return {**self._head, "content": content, **_ending(done, bool(answer.calls)), "usage": self._usage(drafter)}

    def head(self) -> Iterator[str]:
        """The message before anything is said."""
        prompt = len(self.samples[0].prompt.token_ids)
        usage = {"input_tokens": prompt, "output_tokens": 0, **_NOTHING_CACHED}
        yield _event("message_start", message={**self._head, "usage": usage})
        yield _event("ping")

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """Blocks as they come; with the last piece all the rest."""
        for each in self.events(place, piece)[0]:
            yield from self._blocks.tell(each)
        if piece.completion is not None:
            yield from self._blocks.close()
            yield _event(
                "message_delta", delta=_ending(piece.completion, self._blocks.called), usage=self._usage(drafter)
            )
            yield _event("message_stop")

    def failed(self, error: Mapping[str, Any]) -> str:
        """As for every form."""
        return f"event: error\ndata: {to_json(error)}\n\n"

    @cached_property
    def _head(self) -> dict[str, Any]:
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self.settings.served_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    @cached_property
    def _blocks(self) -> _Blocks:
        return _Blocks()

    def _usage(self, drafter: str | None) -> dict[str, Any]:
        """Counts of tokens; those that were found in the cache are not among ``input_tokens``, as Anthropic has it."""
        counts = self.chat.usage(drafter)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "output_tokens": counts["completion_tokens"],
            **_NOTHING_CACHED,
            "cache_read_input_tokens": cached,
            "speculation": counts["speculation"],
        }


_NOTHING_CACHED = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _ending(done: Completion, called: bool) -> dict[str, Any]:
    """Why a message ended; ``called``: it has calls."""
    stopped = done.stop_reason if isinstance(done.stop_reason, str) else None
    if done.finish_reason is FinishReason.LENGTH:
        reason = "max_tokens"
    elif called:
        reason = "tool_use"
    else:
        reason = "end_turn" if stopped is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stopped}


class _Blocks:
    """The blocks of a message, one after the other: one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""
        """The kind of the open block; empty: none is."""
        self.called = False

    def tell(self, event: Event) -> Iterator[str]:
        """Events of the stream for a part of the answer."""
        match event:
            case Text(text):
                yield from self._within("text", {"text": ""})
                yield self._delta(type="text_delta", text=text)
            case Thought(text):
                yield from self._within("thinking", {"thinking": "", "signature": ""})
                yield self._delta(type="thinking_delta", thinking=text)
            case CallBegun(_, call_id, name):
                yield from self.close()
                yield from self._begin("tool_use", {"id": call_id, "name": name, "input": {}})
            case Arguments(_, text):
                yield self._delta(type="input_json_delta", partial_json=text)
            case CallBroken():
                yield from self.close()
            case CallEnded():
                self.called = True
                yield from self.close()

    def close(self) -> Iterator[str]:
        """Ends the open block."""
        if not self._open:
            return
        if self._open == "thinking":
            yield self._delta(type="signature_delta", signature=_SIGNATURE)
        self._open = ""
        yield _event("content_block_stop", index=self._index)

    def _within(self, kind: str, empty: Mapping[str, Any]) -> Iterator[str]:
        if self._open != kind:
            yield from self.close()
            yield from self._begin(kind, empty)

    def _begin(self, kind: str, empty: Mapping[str, Any]) -> Iterator[str]:
        self._open, self._index = kind, self._index + 1
        yield _event("content_block_start", index=self._index, content_block={"type": kind, **empty})

    def _delta(self, **delta: Any) -> str:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {to_json({'type': kind, **fields})}\n\n"
