"""Recordings on the asynchronous engine: their windows decode beside all other requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from headstart.drafting.base import SpeculationParams
from headstart.engine.outputs import FinishReason
from headstart.entrypoints.request import Sample
from headstart.errors import RequestError
from headstart_server.async_engine import Answer, AsyncEngine, BusyError
from headstart_speech.windows import Transcription

Watch = Callable[[Answer], AbstractAsyncContextManager[None]]
"""Makes what surrounds the reading of a window's answer, and ends the answer on leaving."""
_WINDOW = 0
"""The place of the window itself among what a transcription wants."""
_AGAIN_SECONDS = 0.2
_ENDED = "the request was ended before its recording was."


class WindowError(RequestError):
    """A window failed while it was decoded, or was ended."""

    def __init__(self, sample: Sample, answer: Answer) -> None:
        super().__init__(sample.sequence.error or _ENDED, sample.sequence.error_field)
        self.sample = sample
        self.answer = answer


class AsyncTranscription:
    """Decodes a transcription by an engine.

    Args:
        engine: of its model.
        work: not begun yet.
        speculation: overrides the engine's.
        cache_salt: as for ``LLM.generate``.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        work: Transcription,
        speculation: SpeculationParams | None = None,
        cache_salt: str = "",
    ) -> None:
        self._engine = engine
        self._work = work
        self._speculation = speculation
        self._salt = cache_salt
        self._begun = time.perf_counter()
        self._answer: Answer | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End it, however far it is."""
        self._cancelled = True
        if self._answer is not None:
            self._engine.cancel(self._answer)

    async def texts(self, growing: bool = True, watch: Watch | None = None) -> AsyncGenerator[str, None]:
        """The text that is final so far after each window; if ``growing``, also whenever more of it may be.

        Raises:
            RequestError: a window cannot be served (``WindowError``: it failed or was ended).
            BusyError, ClosedError: as ``AsyncEngine.submit``.
            ConfigError: memory for times of words is short.
        """
        work = self._work
        while not work.done:
            samples = await asyncio.to_thread(work.samples, self._engine.llm, self._speculation, self._salt)
            answer, tokens = await self._submitted(samples), list[int]()
            async with (watch or self._left)(answer):
                async for piece in answer:
                    _check(samples, answer)
                    if growing and piece.prompt_index == _WINDOW:
                        tokens += piece.token_ids
                        yield work.text_so_far(tokens)
            await asyncio.to_thread(work.take, samples)
            yield work.transcript().text

    async def _submitted(self, samples: list[Sample]) -> Answer:
        """A recording that has begun waits for its turn rather than be lost."""
        while not self._cancelled:
            answer = self._answer = self._engine.prepared(samples)
            try:
                await self._engine.enter(answer, self._begun)
            except BusyError:
                if not self._work.progress:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return answer
        raise RequestError(_ENDED)

    @asynccontextmanager
    async def _left(self, answer: Answer) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._engine.cancel(answer)


def _check(samples: list[Sample], answer: Answer) -> None:
    for sample in samples:
        if sample.sequence.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise WindowError(sample, answer)
