"""How a reply shows each sample of a request, whole or piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headstart.engine.outputs import Completion, FinishReason, TokenLogprobs
from headstart.request import Sample, StreamPiece
from headstart.server.protocol import Generation
from headstart.server.replies import (
    Spell,
    chat_logprobs,
    completion_logprobs,
    fewer,
    prompt_logprobs,
    scores,
    stop_reason,
)
from headstart.server.tool_forms import ToolCall
from headstart.server.tool_parser import HERMES
from headstart.server.tools import AnswerParser, ToolRules, read_whole
from headstart.text.detokenizer import IncrementalDetokenizer
from headstart.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class GenerationRequest:
    """One request, checked and ready to decode."""

    body: Generation
    samples: list[Sample]
    tokenizer: Tokenizer
    chat: bool
    logprobs: int | None
    echo: bool = False
    prefix: str = ""
    """The part of the conversation that is repeated before a chat's answer."""
    continued: str = ""
    """The message of a conversation that the answer continues."""
    tools: ToolRules | None = None
    prompt_alone: bool = False
    """Only the echo is wanted: the one token that the engine has to decode is left out."""

    def choice(self, sample: Sample, place: int) -> dict[str, Any]:
        """A finished sample in OpenAI's form."""
        done = sample.completion()
        if self.prompt_alone:
            nothing: list[TokenLogprobs] | None = None if done.logprobs is None else []
            done = Completion(done.index, "", [], FinishReason.LENGTH, done.stats, [], nothing)
        said, called = self._message(sample, done) if self.chat else (self._continuation(sample, done), [])
        if self.body.return_token_ids:
            said["token_ids"] = done.token_ids
        return {
            "index": place,
            **said,
            **({} if self.chat else self.about_prompt(sample)),
            "finish_reason": _finish_reason(done.finish_reason, self.tools, bool(called)),
            "stop_reason": stop_reason(done),
            **scores(done, sample.sequence.params.length_penalty),
        }

    def parser(self, sample: Sample) -> AnswerParser | None:
        """What finds the calls in a sample's text; None: it is nothing but text."""
        if self.tools is None:
            return None
        return self.tools.parser(HERMES.begins_in_thought(sample.prompt.text, self.continued))

    def about_prompt(self, sample: Sample) -> dict[str, Any]:
        """What the reply says about a prompt besides its echo, if requested."""
        told: dict[str, Any] = {}
        if self.body.return_token_ids:
            told["prompt_token_ids"] = sample.prompt.token_ids
        count, entries = self.body.prompt_logprobs, sample.prompt_logprobs
        if count is not None and entries is not None:
            told["prompt_logprobs"] = prompt_logprobs(self._spell, entries, count)
        return told

    def first_part(self, sample: Sample) -> dict[str, Any]:
        """The first chunk of a streamed sample: the role or the echo, and what is said about the prompt.

        For a completion, the prompt must have been read.
        """
        if self.chat:
            return {"delta": {"role": "assistant", "content": self.prefix}}
        part: dict[str, Any] = {"text": self._prompt_text(sample) if self.echo else "", **self.about_prompt(sample)}
        if self.echo and self.logprobs is not None:
            part["logprobs"] = self._echo_logprobs(sample, [], [], [])
        return part

    def part(self, sample: Sample, piece: StreamPiece, calls: AnswerParser | None) -> dict[str, Any]:
        """One piece of a streamed sample, as its chunk shows it."""
        if self.prompt_alone:
            return {"text": ""}
        part: dict[str, Any] = {"text": piece.text}
        if self.chat:
            part = {"delta": {"content": piece.text} if calls is None else _delta(calls, piece)}
        if self.body.return_token_ids:
            part["token_ids"] = piece.token_ids
        if self.logprobs is not None and self.chat:
            part["logprobs"] = chat_logprobs(self.tokenizer, self._spell, piece.logprobs)
        elif self.logprobs is not None:
            before = len(self._prompt_text(sample)) if self.echo else 0
            offsets = [before + offset for offset in piece.text_offsets]
            part["logprobs"] = completion_logprobs(self._spell, piece.logprobs, piece.token_ids, offsets)
        return part

    def tells(self, part: dict[str, Any], piece: StreamPiece) -> bool:
        """Whether a part holds anything worth sending."""
        if piece.finish_reason is not None:
            return True
        if self.prompt_alone:
            return False
        asked = self.logprobs is not None or bool(self.body.return_token_ids)
        return asked or bool(part.get("text") or any(part.get("delta", {}).values()))

    def chunk(
        self, place: int, part: dict[str, Any], piece: StreamPiece | None = None, calls: AnswerParser | None = None
    ) -> dict[str, Any]:
        """The choice of one chunk; ``piece`` is where it came from, ``calls`` what read it."""
        chunk = {"index": place, "logprobs": None, **part, "finish_reason": None}
        if piece is not None and piece.finish_reason is not None:
            reason = FinishReason.LENGTH if self.prompt_alone else piece.finish_reason
            chunk["finish_reason"] = _finish_reason(reason, self.tools, calls is not None and calls.called > 0)
            chunk["stop_reason"] = None if self.prompt_alone else stop_reason(piece.completion)
            if piece.completion is not None:
                chunk |= scores(piece.completion, self.samples[0].sequence.params.length_penalty)
        return chunk

    @property
    def _spell(self) -> Spell:
        return (
            (lambda token: f"token_id:{token}") if self.body.return_tokens_as_token_ids else self.tokenizer.token_text
        )

    def _message(self, sample: Sample, done: Completion) -> tuple[dict[str, Any], list[ToolCall]]:
        """The message of a chat's sample, and its calls."""
        calls = self.parser(sample)
        text, called = (done.text, list[ToolCall]()) if calls is None else read_whole(calls, done.text)
        text = self.prefix + text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if called:
            message |= {"content": text or None, "tool_calls": [call.as_openai() for call in called]}
        entries = done.logprobs
        logprobs = None if entries is None else chat_logprobs(self.tokenizer, self._spell, entries)
        return {"message": message, "logprobs": logprobs}, called

    def _continuation(self, sample: Sample, done: Completion) -> dict[str, Any]:
        """The text of a completion's sample, after its prompt if that is echoed."""
        prompt, logprobs = self._prompt_text(sample) if self.echo else "", None
        if done.logprobs is not None and self.echo:
            logprobs = self._echo_logprobs(sample, done.logprobs, done.token_ids, sample.text_offsets)
        elif done.logprobs is not None:
            logprobs = completion_logprobs(self._spell, done.logprobs, done.token_ids, sample.text_offsets)
        return {"text": prompt + done.text, "logprobs": logprobs}

    def _echo_logprobs(
        self, sample: Sample, entries: list[TokenLogprobs], token_ids: list[int], offsets: list[int]
    ) -> dict[str, Any]:
        """Log-probabilities of a prompt and then of its output."""
        prompt_ids = sample.prompt.token_ids
        echoed = IncrementalDetokenizer(self.tokenizer, skip_special_tokens=False)
        echoed.extend(prompt_ids)
        before = len(self._prompt_text(sample))
        places = [*echoed.offsets, *(before + offset for offset in offsets)]
        tokens = [*prompt_ids, *token_ids]
        first = fewer(sample.prompt_logprobs or [], self.logprobs or 0)
        return completion_logprobs(self._spell, [*first, *entries], tokens, places[: len(tokens)])

    def _prompt_text(self, sample: Sample) -> str:
        return self.tokenizer.decode(sample.prompt.token_ids, skip_special_tokens=False)


def _delta(calls: AnswerParser, piece: StreamPiece) -> dict[str, Any]:
    before = calls.called
    said = calls.feed(piece.text) if piece.finish_reason is None else read_whole(calls, piece.text)
    if not said.calls:
        return {"content": said.text}
    told = [{"index": before + index, **call.as_openai()} for index, call in enumerate(said.calls)]
    return {"content": said.text or None, "tool_calls": told}


def _finish_reason(reason: FinishReason | None, tools: ToolRules | None, called: bool) -> str:
    """OpenAI's word for it: "tool_calls" after a call, but "stop" if ``tool_choice`` named the function."""
    if called and reason is FinishReason.STOP and (tools is None or tools.named is None):
        return "tool_calls"
    return str(reason)
