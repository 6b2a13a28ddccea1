"""The form of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.server.chat_protocol import ChatBody
from headstart.server.forms import ChoicesForm
from headstart.server.replies import finite
from headstart.server.tool_parser import HERMES, Said
from headstart.server.tools import AnswerParser, read_whole, tool_rules


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
        self._tools = tool_rules(body, self.llm.model.chat_template.knows_tools, self.settings.max_tools)
        if self._tools is not None and self._tools.structure is not None:
            # What a format says of the text does not matter where a call is all that is said, as OpenAI has it.
            if params.structured_outputs is not None and not body.formats_text():
                raise RequestError(
                    "tool_choice forces a call beside another structured output; keep one of them.", "tool_choice"
                )
            params = replace(params, structured_outputs=self._tools.structure)
        self._prefix = body.continued() if body.echo else ""
        """The part of the conversation that is repeated before the answer."""
        self._parsers: list[AnswerParser] = []
        """[sample] what finds the calls in its text, where there are tools."""
        return params

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        body = self.body
        tools = None if body.tool_choice == "none" else body.shown_tools()
        prompt = self.llm.encode_chat(body.messages, tools, body.template_variables())
        samples = self.llm.samples(prompt, self.params, body.wishes(self.llm.speculation), cache_salt=salt)
        if self._tools is not None:
            thinking = HERMES.begins_in_thought(prompt.text, body.continued())
            self._parsers = [self._tools.parser(thinking) for _ in samples]
        return samples

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """As OpenAI's, and what is said about the prompt."""
        return super().whole(drafter) | self.about_prompt(self.samples[0])

    def choice(self, place: int, sample: Sample, done: Completion) -> dict[str, Any]:
        """Its message."""
        said = self._said(place, done.text, ended=True)
        text = self._prefix + said.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if said.calls:
            message |= {"content": text or None, "tool_calls": [call.as_openai() for call in said.calls]}
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
        called = self._called(place)
        said = self._said(place, piece.text, ended=piece.finish_reason is not None)
        delta: dict[str, Any] = {"content": said.text}
        if said.calls:
            told = [{"index": called + index, **call.as_openai()} for index, call in enumerate(said.calls)]
            delta = {"content": said.text or None, "tool_calls": told}
        part = {"delta": delta, **self.ids(piece.token_ids)}
        if self.body.logprobs:
            part["logprobs"] = self._logprobs(piece.logprobs)
        return part

    def finish_reason(self, place: int, reason: FinishReason | None) -> str:
        """ "tool_calls" after a call, but "stop" if ``tool_choice`` named the function."""
        named = self._tools is not None and self._tools.named is not None
        return "tool_calls" if self._called(place) and reason is FinishReason.STOP and not named else str(reason)

    def _said(self, place: int, text: str, ended: bool) -> Said:
        if not self._parsers:
            return Said(text, [])
        parser = self._parsers[place]
        return read_whole(parser, text) if ended else parser.feed(text)

    def _called(self, place: int) -> int:
        return self._parsers[place].called if self._parsers else 0

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
