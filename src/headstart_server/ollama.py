"""The forms of ``POST /api/chat`` and ``POST /api/generate``: objects, one a line."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from headstart.engine.outputs import Completion
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.answers.events import Answer, Arguments, Call, CallBegun, CallBroken, CallEnded, Text, Thought
from headstart_server.completions import ending_with_middle
from headstart_server.conversations import ConversationForm, fields_of
from headstart_server.infill_prompts import Infill
from headstart_server.ollama_protocol import OllamaBody, OllamaChatBody, OllamaGenerateBody
from headstart_server.replies import speculation, to_json

O = TypeVar("O", bound=OllamaBody)  # noqa: E741
_NANOSECONDS = 1e9


class OllamaForm(ConversationForm[O]):
    """What the two routes have in common."""

    media_type = "application/x-ndjson"

    def read(self) -> SamplingParams:
        """As for every form."""
        if self.body.n not in (None, 1):
            raise RequestError(f"n is {self.body.n}; there is one answer, so leave it out.", "n")
        self._begun = time.perf_counter()
        self._arguments = ""
        self._call: CallBegun | None = None
        """The call that is being told."""
        return super().read()

    def bounded(self, samples: list[Sample]) -> list[Sample]:
        """The samples, whose answers end where ``num_ctx`` does. Nothing of a longer prompt is dropped in silence.

        Raises:
            RequestError: a prompt is longer.
        """
        bound = self.body.context_bound
        if bound is None:
            return samples
        for sequence in [sample.sequence for sample in samples]:
            room = bound - sequence.prompt_length
            if room < 1:
                raise RequestError(
                    f"the prompt has {sequence.prompt_length} tokens, but options.num_ctx is {bound}; raise it, or "
                    "leave out the oldest messages.",
                    "options.num_ctx",
                )
            sequence.stops = replace(sequence.stops, max_tokens=min(sequence.stops.max_tokens, room))
        return samples

    @abstractmethod
    def said(self, answer: Answer) -> dict[str, Any]:
        """A part of the answer, or all of it."""

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """All of the answer, and its counts."""
        done = self.samples[0].completion()
        answer, logprobs = self.answer(done)
        return self._object(self.said(answer), True, logprobs) | self.counts(done, drafter)

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """A line for what became certain; the last one has the counts. A call is told as a whole."""
        text, thought, calls = "", "", list[Call]()
        events, logprobs = self.events(place, piece)
        for each in events:
            match each:
                case Text():
                    text += each.text
                case Thought():
                    thought += each.text
                case CallBegun():
                    self._call, self._arguments = each, ""
                case Arguments():
                    self._arguments += each.text
                case CallBroken():
                    self._call = None
                case CallEnded() if self._call is not None:
                    calls.append(Call(self._call.id, self._call.name, self._arguments))
                    self._call = None
        if text or thought or calls or logprobs:
            yield _line(self._object(self.said(Answer(text, thought, calls)), False, logprobs))
        if piece.completion is not None:
            last = self._object(self.said(Answer("", "", [])), True, [])
            yield _line(last | self.counts(piece.completion, drafter))

    def failed(self, error: Mapping[str, Any]) -> str:
        """As for every form."""
        return _line(error)

    def counts(self, done: Completion, drafter: str | None) -> dict[str, Any]:
        """What the last object says of the answer; times in nanoseconds."""
        stats = done.stats
        reading = stats.prefill_seconds
        return {
            "done_reason": str(done.finish_reason),
            "total_duration": _nanoseconds(time.perf_counter() - self._begun),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(reading),
            "eval_count": stats.tokens,
            "eval_duration": _nanoseconds(max(stats.seconds - reading, 0.0)),
            "speculation": speculation([stats], drafter),
        }

    def _object(self, said: Mapping[str, Any], done: bool, logprobs: Sequence[Any]) -> dict[str, Any]:
        beside = {} if not logprobs else {"logprobs": list(logprobs)}
        return {"model": self.settings.served_name, "created_at": now(), **said, "done": done, **beside}


class OllamaChatForm(OllamaForm[OllamaChatBody]):
    """A conversation."""

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        return self.bounded(super().make_samples(salt))

    def said(self, answer: Answer) -> dict[str, Any]:
        """As a message."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.thought:
            message["thinking"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"index": place, "name": call.name, "arguments": fields_of(call)}}
                for place, call in enumerate(answer.calls)
            ]
        return {"message": message}


class OllamaGenerateForm(OllamaForm[OllamaGenerateBody]):
    """A prompt: a conversation of one message, a text that is continued, or one that is filled in."""

    def read(self) -> SamplingParams:
        """As for every form."""
        params = super().read()
        body = self.body
        self._plain = bool(body.raw or body.suffix) or not self.llm.model.chat_template.available
        """Whether the prompt is read without a template."""
        if body.raw and (body.context or body.system):
            raise RequestError("raw is given beside context or system; write them into the prompt.", "raw")
        self._infill = Infill(self.llm.model) if body.suffix else None
        return params if self._infill is None else ending_with_middle(params, self._infill)

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        body = self.body
        context = body.context or ()
        if not self._plain:
            self.chat.samples = self.chat.make_samples(salt, context)
            return self.bounded(self.chat.samples)
        if self._infill is not None:
            prompt = self._infill.encode(body.prompt or "", body.suffix or "")
        else:
            system = f"{body.system}\n\n" if body.system else ""
            prompt = self.llm.encode(system + (body.prompt or ""))
        prompt = prompt.following(context, self.tokenizer.start)
        wishes = body.wishes(self.llm.speculation)
        self.chat.samples = self.llm.samples(prompt, self.params, wishes, cache_salt=salt)
        return self.bounded(self.chat.samples)

    def said(self, answer: Answer) -> dict[str, Any]:
        """As a text."""
        return {"response": answer.text, **({"thinking": answer.thought} if answer.thought else {})}

    def counts(self, done: Completion, drafter: str | None) -> dict[str, Any]:
        """As for every form; and the tokens so far, to go on from."""
        told = super().counts(done, drafter)
        if not self.body.raw and not self.body.suffix:
            told["context"] = [*self.samples[0].prompt.token_ids, *done.token_ids]
        return told


def now() -> str:
    """This moment, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _line(content: Any) -> str:
    return to_json(content) + "\n"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
