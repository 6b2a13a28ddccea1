"""The asynchronous engine as the server runs it: what it does is counted, and readers who leave end their requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import Request

from headstart.engine.sequence import Sequence
from headstart.engine.usefulness import UsefulnessWatch
from headstart.entrypoints.llm import LLM
from headstart_server.async_engine import Answer, AsyncEngine, ClosedError
from headstart_server.metrics import Metrics

_LOOK_SECONDS = 1.0
"""After which who waits for the engine looks whether it is still there."""
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class EngineThread(AsyncEngine):
    """``AsyncEngine`` with metrics; its own, or those of an engine before it."""

    def __init__(
        self, llm: LLM, max_waiting: int = 64, max_seconds: float | None = None, metrics: Metrics | None = None
    ) -> None:
        super().__init__(llm, max_waiting, max_seconds)
        self.metrics = metrics or Metrics()
        self._watch = UsefulnessWatch()

    @asynccontextmanager
    async def watched(self, answer: Answer, request: Request) -> AsyncIterator[None]:
        """End ``answer`` when its reader is gone: disconnected, or no longer inside this context."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.cancel(answer)

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()
            self.cancel(answer)

    def at_rest(self, action: Callable[[], Result]) -> Result:
        """What ``action`` returns, which is called between two passes and is to be quick; another thread waits for it.

        Raises:
            ClosedError: the engine ends.
        """
        done: Future[Result] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except Exception as error:
                done.set_exception(error)

        self._commands.put(act)
        while True:
            try:
                return done.result(_LOOK_SECONDS)
            except TimeoutError:
                if not self.alive:
                    raise ClosedError("the engine has ended.") from None

    def gauges(self) -> dict[str, float]:
        """The current state."""
        allocator = self._engine.runner.cache.allocator
        running, waiting = len(self._engine.running), len(self._engine.waiting)
        return {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:kv_cache_usage_perc": 1 - allocator.num_free / allocator.num_blocks,
            "headstart:kv_cache_kept_blocks": allocator.num_kept,
            "headstart:engine_work_seconds": 0.0 if (work := self._engine.work) is None else work.seconds,
            "headstart:failed_passes": self._engine.runner.failed_passes,
            **{f"headstart:drafter_faults_{_metric(n)}": count for n, count in self._engine.drafters.faults.items()},
        }

    def _waited(self, first: bool, seconds: float) -> None:
        self.metrics.waited(first, seconds)

    def _finished(self, sequence: Sequence, drafter: str | None) -> None:
        self.metrics.finished(sequence, drafter)
        hint = self._watch.add(drafter, sequence.stats)
        if hint is not None:
            _log.warning("%s", hint)


def _metric(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
