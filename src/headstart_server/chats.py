"""The form of ``POST /v1/chat/completions``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.answers.events import Answer, Arguments, Call, CallBegun, CallBroken, Event, Text, Thought, told
from headstart.text.answers.model_answers import Reader
from headstart_server.chat_protocol import ChatBody
from headstart_server.forms import ChoicesForm
from headstart_server.replies import finite
from headstart_server.tools import tool_rules


class ChatForm(ChoicesForm[ChatBody]):
    """A conversation that is answered, perhaps with calls of tools."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def read(self) -> SamplingParams:
        """As for every form."""
        body = self.body
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = body.sampling(self.settings, self.llm.sampling_defaults, most, logprobs)
        model = self.llm.model
        knows_tools = model.chat_template.knows_tools
        self._tools = tool_rules(body, self.llm.answers, knows_tools, self.settings.max_tools, model.name)
        if self._tools is not None and self._tools.structure is not None:
            # What a format says of the text does not matter where a call is all that is said, as OpenAI has it.
            if params.structured_outputs is not None and not body.formats_text():
                raise RequestError(
                    "tool_choice forces a call beside another structured output; keep one of them.", "tool_choice"
                )
            params = replace(params, structured_outputs=self._tools.structure)
        self._prefix = body.continued() if body.echo else ""
        """The part of the conversation that is repeated before the answer."""
        self._readers: list[Reader] = []
        """[sample] what reads its text, unless all of that is text."""
        self._broken: dict[int, list[int]] = {}
        """Sample -> calls that a stream has begun, and that turned out to be none."""
        return params

    def make_samples(self, salt: str, before: Sequence[int] = ()) -> list[Sample]:
        """As for every form; ``before``: tokens that the conversation follows."""
        body = self.body
        shown_tools = None if body.tool_choice == "none" else body.shown_tools()
        prompt = self.llm.encode_chat(body.messages, shown_tools, body.template_variables())
        prompt = prompt.following(before, self.tokenizer.start)
        tools, answers = self._tools, self.llm.answers
        readers = [
            answers.reader(
                None if tools is None else tools.tools,
                prompt.text,
                body.continued(),
                parallel=tools is None or tools.parallel,
                forced=tools is not None and tools.structure is not None,
            )
            for _ in range(self.params.n)
        ]
        self._readers = [reader for reader in readers if reader is not None]
        return self.llm.samples(
            prompt,
            self.params,
            body.wishes(self.llm.speculation),
            cache_salt=salt,
            shown=answers.shown if self._readers else frozenset(),
            thinks=answers.thinks(prompt.text, body.continued()),
        )

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """As OpenAI's, and what is said about the prompt."""
        return super().whole(drafter) | self.about_prompt(self.samples[0])

    def choice(self, place: int, sample: Sample, done: Completion) -> dict[str, Any]:
        """Its message."""
        answer = self.answer(place, done)
        text = self._prefix + answer.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if answer.thought and self.tells_thoughts:
            message |= _thought(answer.thought)
        if answer.calls:
            message |= {"content": text or None, "tool_calls": [_call(call) for call in answer.calls]}
        logprobs = None if done.logprobs is None else self._logprobs(done.logprobs)
        return {"message": message, "logprobs": logprobs, **self.ids(done.token_ids)}

    def head(self) -> Iterator[str]:
        """The role of each sample, and what is said about the prompt."""
        for place, sample in enumerate(self.samples):
            delta = {"role": "assistant", "content": self._prefix}
            yield self.chunk(place, {"delta": delta}, self.about_prompt(sample))

    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """One chunk, if there is anything to tell."""
        part = self.part(place, piece)
        if piece.completion is not None:
            yield self.last_chunk(place, part, piece.completion, drafter)
        elif any(part["delta"].values()) or part.keys() - {"delta"}:
            yield self.chunk(place, part)

    def part(self, place: int, piece: StreamPiece) -> dict[str, Any]:
        """What a chunk says of a piece: ``delta``, and ``logprobs`` and ``token_ids`` where they are asked for."""
        return {"delta": self._delta(self.events(place, piece)), **self.beside(piece)}

    def beside(self, piece: StreamPiece) -> dict[str, Any]:
        """What is told of a piece beside what it says."""
        part: dict[str, Any] = self.ids(piece.token_ids)
        return part | ({"logprobs": self._logprobs(piece.logprobs)} if self.body.logprobs else {})

    def _delta(self, events: Sequence[Event]) -> dict[str, Any]:
        text = "".join(event.text for event in events if isinstance(event, Text))
        thought = "".join(event.text for event in events if isinstance(event, Thought))
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            match event:
                case CallBegun():
                    function = {"name": event.name, "arguments": ""}
                    calls[event.index] = {
                        "index": event.index,
                        "id": event.id,
                        "type": "function",
                        "function": function,
                    }
                case Arguments():
                    call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
                    call["function"]["arguments"] += event.text
        delta: dict[str, Any] = {"content": (text or None) if calls or thought else text}
        if thought and self.tells_thoughts:
            delta |= _thought(thought)
        return delta | ({"tool_calls": [*calls.values()]} if calls else {})

    def events(self, place: int, piece: StreamPiece) -> list[Event]:
        """What became certain of a sample's answer by its next piece; each piece once, in order."""
        if not self._readers:
            return [Text(piece.text)] if piece.text else []
        events = self._readers[place].feed(piece.text)
        events += self._readers[place].finish() if piece.finish_reason is not None else []
        broken = [event.index for event in events if isinstance(event, CallBroken)]
        self._broken.setdefault(place, []).extend(broken)
        return events

    def all_events(self, place: int, done: Completion) -> list[Event]:
        """The same of a finished sample of which no piece was told."""
        if not self._readers:
            return [Text(done.text)] if done.text else []
        return self._readers[place].all(done.text)

    def answer(self, place: int, done: Completion) -> Answer:
        """What a finished sample says, of which no piece was told."""
        return told(self.all_events(place, done))

    def logprobs_of(self, done: Completion) -> list[Any]:
        """A finished sample's log-probabilities, where they are asked for."""
        return [] if done.logprobs is None else list(self._logprobs(done.logprobs)["content"])

    @property
    def tells_thoughts(self) -> bool:
        """Whether the reply shows what the model thought."""
        return self.body.include_reasoning is not False

    def usage(self, drafter: str | None) -> dict[str, Any]:
        """Counts of tokens, thoughts among them."""
        counts = super().usage(drafter)
        if self._readers:
            thought = sum(map(_thinking_tokens, self._readers, self.samples))
            counts["completion_tokens_details"]["reasoning_tokens"] = thought
        return counts

    def ending(self, place: int, done: Completion) -> dict[str, Any]:
        """As OpenAI's; and which calls of the stream are to be dropped, since they break off. Their text is content."""
        broken = self._broken.get(place)
        return super().ending(place, done) | ({"broken_tool_calls": broken} if broken else {})

    def finish_reason(self, place: int, reason: FinishReason | None) -> str:
        """ "tool_calls" after a call, but "stop" if ``tool_choice`` named the function."""
        named = self._tools is not None and self._tools.named
        called = self._readers[place].called if self._readers else 0
        return "tool_calls" if called and reason is FinishReason.STOP and not named else str(reason)

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        spell = self.spell()

        def shown(token: int, logprob: float) -> dict[str, Any]:
            spelling = self.tokenizer.token_bytes(token)
            return {"token": spell(token), "logprob": finite(logprob), "bytes": list(spelling)}

        content = [
            {
                **shown(entry.token_id, entry.logprob),
                "top_logprobs": [shown(token, logprob) for token, logprob in entry.top.items()],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def _call(call: Call) -> dict[str, Any]:
    """A call in OpenAI's form."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _thought(text: str) -> dict[str, str]:
    """By the name that most clients read, and by vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _thinking_tokens(reader: Reader, sample: Sample) -> int:
    """Tokens of a sample's text that begin inside of a thought."""
    places = sample.text_offsets
    return sum(bisect_left(places, end) - bisect_left(places, begin) for begin, end in reader.thoughts)
