"""The form of a route: how a request is read, and how its answer is told, whole or as a stream of events."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from headstart.engine.outputs import Completion, FinishReason
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.sampling.params import SamplingParams
from headstart.text.tokenizer import Tokenizer
from headstart_server.protocol import GenerationBody
from headstart_server.replies import Spell, event, prompt_logprobs, scores, spec_decode_metrics, speculation, usage
from headstart_server.settings import ServerSettings

B = TypeVar("B", bound=GenerationBody)


class Form(ABC, Generic[B]):
    """One request of one route. It is read by the constructor and ``make_samples``; the answer is told by ``whole``, or
    in a stream by ``head``, ``first`` and ``piece`` for each sample, and ``end``.

    Args:
        body: of the request.
        llm: what answers it.
        settings: the server's limits.

    Raises:
        RequestError: the request is wrong.
    """

    media_type = "text/event-stream"
    """Of a stream."""

    def __init__(self, body: B, llm: LLM, settings: ServerSettings) -> None:
        self.body = body
        self.llm = llm
        self.settings = settings
        self.samples: list[Sample] = []
        """Set before anything is told."""
        self.slot = -1
        """The number of the one that answers, as llama.cpp has it."""
        self.params = self.read()

    @abstractmethod
    def read(self) -> SamplingParams:
        """Check the body; how it wants to be answered."""

    @abstractmethod
    def make_samples(self, salt: str) -> list[Sample]:
        """Make the prompts; runs on a thread of its own. ``salt``: of the cache.

        Raises:
            RequestError: a prompt is wrong.
        """

    @abstractmethod
    def whole(self, drafter: str | None) -> dict[str, Any]:
        """The reply once all samples are finished; ``drafter``: what guessed."""

    def head(self) -> Iterator[str]:
        """What a stream begins with, before the prompt is read."""
        yield from ()

    def first(self, place: int) -> Iterator[str]:
        """What a sample begins with, once its prompt is read; ``place``: among the samples."""
        yield from ()

    @abstractmethod
    def piece(self, place: int, piece: StreamPiece, drafter: str | None) -> Iterator[str]:
        """One piece of a sample; the last one has a finish reason."""

    def failed(self, error: Mapping[str, Any]) -> str:
        """The last event of a sample that failed; ``error``: the body that it would get as a whole reply."""
        return event(error)

    def end(self, drafter: str | None) -> Iterator[str]:
        """What a stream ends with."""
        yield from ()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self.llm.model.tokenizer

    def spell(self) -> Spell:
        """How tokens are named beside log-probabilities."""
        return (
            (lambda token: f"token_id:{token}") if self.body.return_tokens_as_token_ids else self.tokenizer.token_text
        )


class ChoicesForm(Form[B]):
    """What OpenAI's two routes with ``choices`` have in common."""

    kind: str
    """``object`` of a whole reply."""
    chunk_kind: str
    """``object`` of a chunk."""
    id_prefix: str

    @abstractmethod
    def choice(self, place: int, sample: Sample, done: Completion) -> dict[str, Any]:
        """A finished sample, but for what ``ending`` says."""

    def whole(self, drafter: str | None) -> dict[str, Any]:
        """As OpenAI's."""
        choices = []
        for place, sample in enumerate(self.samples):
            done = sample.completion()
            choice = {"index": place, **self.choice(place, sample, done)}
            choices.append(choice | self.ending(place, done))
        return self._shell(self.kind) | {"choices": choices, "usage": self.usage(drafter)} | self._metrics()

    def end(self, drafter: str | None) -> Iterator[str]:
        """Counts, where they are wanted, and OpenAI's mark."""
        if self.body.wants_usage:
            yield event(self._chunk | {"choices": [], "usage": self.usage(drafter)} | self._metrics())
        yield "data: [DONE]\n\n"

    def chunk(self, place: int, part: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> str:
        """One choice of one chunk; ``beside``: what stands beside the choices."""
        choice = {"index": place, "logprobs": None, "finish_reason": None, **part}
        return event(self._chunk | {"choices": [choice]} | dict(beside or {}))

    def last_chunk(self, place: int, part: Mapping[str, Any], done: Completion, drafter: str | None) -> str:
        """The last chunk of a sample."""
        return self.chunk(
            place, {**part, **self.ending(place, done)}, {"speculation": speculation([done.stats], drafter)}
        )

    def ending(self, place: int, done: Completion) -> dict[str, Any]:
        """Why a sample ended, and how good it is."""
        return {
            "finish_reason": self.finish_reason(place, done.finish_reason),
            "stop_reason": done.stop_reason,
            **scores(done, self.params.length_penalty),
        }

    def finish_reason(self, place: int, reason: FinishReason | None) -> str:
        """OpenAI's word for it."""
        return str(reason)

    def usage(self, drafter: str | None) -> dict[str, Any]:
        """Counts of tokens."""
        return usage(self.samples, drafter)

    def about_prompt(self, sample: Sample) -> dict[str, Any]:
        """What the reply says about a prompt, where that is asked for."""
        told: dict[str, Any] = {}
        if self.body.return_token_ids:
            told["prompt_token_ids"] = sample.prompt.token_ids
        count, entries = self.body.prompt_logprobs, sample.prompt_logprobs
        if count is not None and entries is not None:
            told["prompt_logprobs"] = prompt_logprobs(self.spell(), entries, count)
        return told

    def ids(self, token_ids: list[int]) -> dict[str, Any]:
        """A choice's token ids, where they are asked for."""
        return {"token_ids": token_ids} if self.body.return_token_ids else {}

    @cached_property
    def _chunk(self) -> dict[str, Any]:
        """What all chunks have in common."""
        return self._shell(self.chunk_kind) | ({"usage": None} if self.body.wants_usage else {})

    def _shell(self, kind: str) -> dict[str, Any]:
        reply_id = self.id_prefix + secrets.token_hex(12)
        return {"id": reply_id, "object": kind, "created": int(time.time()), "model": self.settings.served_name}

    def _metrics(self) -> dict[str, Any]:
        """How guesses fared, if that is wanted and there is one sample whose guesses they were (as in vLLM)."""
        if len(self.samples) > 1 or not self.body.wants_spec_decode_metrics(self.settings):
            return {}
        counts = spec_decode_metrics(self.samples[0].sequence.stats)
        return {} if counts is None else {"metrics": {"speculative_decoding": counts}}
