"""The library's front door for asyncio: many requests at once, each with outputs that grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Self

from headstart.common.installed import AddedMethod
from headstart.common.options import takes, tells_options
from headstart.drafting.base import SpeculationParams
from headstart.engine.outputs import Completion, RequestOutput, SequenceStats, TokenLogprobs
from headstart.entrypoints.adapters import AdapterWish
from headstart.entrypoints.engine_options import AsyncEngineOptions, EngineOptions
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt, Message, Prompt
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.chat_tokenizer import ChatTokenizer
from headstart_server.async_engine import AsyncEngine


@tells_options(AsyncEngineOptions)
class AsyncLLM:
    """``LLM`` for asyncio. Requests of all tasks decode together, on a thread of their own. ``close``, or the end of
    ``async with AsyncLLM(...) as llm:``, ends them and frees the memory.

    Its arguments are those of ``LLM``, of the same meaning and defaults, and how long a queue may grow; ``model`` may
    also be an ``LLM``, which nothing else may use from then on.

    Raises:
        ConfigError, CheckpointError: as ``LLM``.
    """

    @takes(AsyncEngineOptions)
    def __init__(self, options: AsyncEngineOptions) -> None:
        self.llm = options.model if isinstance(options.model, LLM) else LLM.from_options(options)
        self.engine = AsyncEngine(self.llm, options.max_waiting, options.max_seconds)
        """The thread that all requests decode on."""
        self._requests: dict[str, Callable[[], None]] = {}
        """What ends a request, by its name."""
        self._names = count()
        self.engine.start()

    @classmethod
    def from_engine_args(cls, engine_args: EngineOptions, **elsewhere: Any) -> Self:
        """Of options that were put together before, by the name that vLLM has for it (``AsyncEngineArgs``). Its further
        arguments say how an engine works, and are not looked at."""
        return cls(**engine_args.given())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        speculation: SpeculationParams | None = None,
        cache_salt: str = "",
        lora_request: AdapterWish = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Decode one prompt. Each output holds everything so far; the last one is what ``LLM.generate`` returns.

        Leaving the loop early ends the request. A sample that fails while it decodes gets finish reason "error".

        Args:
            prompt: as for ``LLM.generate``.
            sampling_params: ``SamplingParams()`` if left out.
            request_id: a name for ``abort``, which no other request has at the time.
            speculation: overrides the engine's for this request.
            cache_salt: only requests of the same salt share cached prefixes, and what drafters remember of them.
            lora_request: as for ``LLM.generate``.

        Raises:
            RequestError: the prompt cannot be served, or a parameter does not fit the model.
            BusyError: too many samples are waiting already.
            ClosedError: this ``AsyncLLM`` is closed.
        """
        asked = (sampling_params, request_id, speculation, cache_salt, lora_request)
        async for output in self._outputs(lambda: self.llm.encode(prompt), *asked):
            yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        speculation: SpeculationParams | None = None,
        cache_salt: str = "",
        lora_request: AdapterWish = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation through the model's chat template; otherwise as ``generate``."""

        def encode() -> EncodedPrompt:
            return self.llm.encode_chat(messages, tools, chat_template_kwargs)

        asked = (sampling_params, request_id, speculation, cache_salt, lora_request)
        async for output in self._outputs(encode, *asked):
            yield output

    async def add_drafter_texts(self, texts: Prompt | Sequence[Prompt], *, cache_salt: str = "") -> int:
        """Give drafters texts to copy from, while requests decode; as ``LLM.add_drafter_texts``."""
        return await asyncio.to_thread(self.llm.add_drafter_texts, texts, cache_salt=cache_salt)

    transcribe = AddedMethod()
    """What a recording says, as it becomes final: ``headstart_speech.front_doors.transcribe_async``."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests, however far they are; their last output has finish reason "abort". Unknown names do nothing."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self._requests:
                self._requests[name]()

    @contextmanager
    def enlisted(self, request_id: str | None, end: Callable[[], None]) -> Iterator[str]:
        """Let ``abort`` know a request while it is under way, and give it a name if it has none.

        Args:
            end: ends the request, however far it is; also called on leaving.

        Raises:
            RequestError: another request has the name.
        """
        name = f"request-{next(self._names)}" if request_id is None else request_id
        if name in self._requests:
            raise RequestError(f"request_id is {name!r}, which another request has; choose another.", "request_id")
        self._requests[name] = end
        try:
            yield name
        finally:
            end()
            del self._requests[name]

    def get_tokenizer(self) -> ChatTokenizer:
        """The target's tokenizer with its chat template."""
        return self.llm.get_tokenizer()

    def close(self) -> None:
        """End all requests after the pass that they are in, and free the memory."""
        self.engine.stop()
        self.llm.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def _outputs(
        self,
        encode: Callable[[], EncodedPrompt],
        params: SamplingParams | None,
        request_id: str | None,
        speculation: SpeculationParams | None,
        cache_salt: str,
        lora_request: AdapterWish,
    ) -> AsyncGenerator[RequestOutput, None]:
        def begun() -> list[Sample]:
            wanted = params or self.llm.get_default_sampling_params()
            llm = self.llm.adapted(lora_request)
            return llm.samples(encode(), wanted, speculation, cache_salt=cache_salt)

        samples = await asyncio.to_thread(begun)
        answer = self.engine.prepared(samples)
        with self.enlisted(request_id, partial(self.engine.cancel, answer)) as name:
            await self.engine.enter(answer)
            # Put together from pieces: the samples themselves belong to the engine's thread.
            completions, prompt, read = [_nothing(sample) for sample in samples], samples[0].prompt, None
            async for piece in answer:
                completions[piece.sample] = piece.completion or _grown(completions[piece.sample], piece)
                read = piece.prompt_logprobs if read is None else read
                yield RequestOutput(
                    prompt.text,
                    prompt.token_ids,
                    list(completions),
                    read,
                    name,
                    prompt.source_text,
                    prompt.source_token_ids,
                    samples[0].metrics(samples) if all(each.finished() for each in completions) else None,
                )


AsyncLLMEngine = AsyncLLM
"""vLLM's former name."""


def _nothing(sample: Sample) -> Completion:
    """A sample before its first piece."""
    stats = SequenceStats(prompt_tokens=sample.sequence.stats.prompt_tokens)
    logprobs: list[TokenLogprobs] | None = None if sample.sequence.params.logprobs is None else []
    return Completion(sample.index, "", [], None, stats, [], logprobs)


def _grown(before: Completion, piece: StreamPiece) -> Completion:
    tokens = [*before.token_ids, *piece.token_ids]
    return Completion(
        index=before.index,
        text=before.text + piece.text,
        token_ids=tokens,
        finish_reason=None,
        stats=SequenceStats(prompt_tokens=before.stats.prompt_tokens, tokens=len(tokens)),
        origins=[*before.origins, *piece.origins],
        logprobs=None if before.logprobs is None else [*before.logprobs, *piece.logprobs],
    )
