"""From the body of a request to its reply, whole or as a stream of events, whatever its form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headstart.engine.outputs import FinishReason
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.request import Sample
from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart_server.access import TENANT
from headstart_server.async_engine import Answer, BusyError
from headstart_server.engine_thread import EngineThread
from headstart_server.error_forms import error_body, error_for
from headstart_server.forms import B, Form
from headstart_server.protocol import GenerationBody
from headstart_server.replies import Reply
from headstart_server.settings import ServerSettings
from headstart_server.slots import Slots

_MOST_COMPILING = 32
"""Requests that may wait for their schemas to be compiled."""


class Generator:
    """Answers requests for texts with one engine."""

    def __init__(self, engine: EngineThread, settings: ServerSettings) -> None:
        self._engine = engine
        self._llm = engine.llm
        self.slots = Slots(engine, settings)
        # Of their own, so that no other request waits for costly schemas.
        self._compilers = ThreadPoolExecutor(_MOST_COMPILING, "headstart-grammars")
        self._compiling = 0

    async def answer(
        self, route: type[Form[B]], body: B, request: Request, llm: LLM, settings: ServerSettings
    ) -> Response:
        """The reply to a request of one route.

        Args:
            llm: the engine's, or the same with an adapter.
            settings: the server's, with the name of what answers.

        Raises:
            RequestError: it is wrong.
            BusyError: too many requests are waiting.
        """
        with _blaming(body):
            self.slots.require(body.id_slot)
            form = await asyncio.to_thread(route, body, llm, settings)
            await self.compile(form.params.structured_outputs)
            form.samples = await asyncio.to_thread(form.make_samples, _salt(body, request))
            answer = await self._engine.submit(form.samples)
        if body.stream:
            return StreamingResponse(self._stream(form, answer, request), media_type=form.media_type)
        async with self._watched(form, answer, request):
            async for _ in answer:
                pass
        for sample in form.samples:
            if sample.sequence.finish_reason is FinishReason.ERROR:
                failed, status = failure(body, sample, answer)
                return Reply(error_for(request.url.path, failed, status), status)
        return Reply(form.whole(answer.drafter))

    async def _stream(self, form: Form[Any], answer: Answer, request: Request) -> AsyncIterator[str]:
        places = {(sample.prompt_index, sample.index): place for place, sample in enumerate(form.samples)}
        begun: set[int] = set()
        async with self._watched(form, answer, request):
            for told in form.head():
                yield told
            async for piece in answer:
                place = places[piece.prompt_index, piece.sample]
                if piece.finish_reason is FinishReason.ERROR:
                    failed, status = failure(form.body, form.samples[place], answer)
                    yield form.failed(error_for(request.url.path, failed, status))
                    continue
                if place not in begun:
                    begun.add(place)
                    for told in form.first(place):
                        yield told
                for told in form.piece(place, piece, answer.drafter):
                    yield told
            for told in form.end(answer.drafter):
                yield told

    @asynccontextmanager
    async def _watched(self, form: Form[Any], answer: Answer, request: Request) -> AsyncIterator[None]:
        """Within, a request has its slot, and ends when its reader leaves."""
        with self.slots.taken(form.body.id_slot, request, form.samples[0].sequence) as form.slot:
            async with self._engine.watched(answer, request):
                yield

    def close(self) -> None:
        """End the threads that compile schemas."""
        self._compilers.shutdown(wait=False)

    async def compile(self, wanted: StructuredOutputsParams | None) -> None:
        """Make ready what form an output must have, so that no other request waits for it.

        Raises:
            RequestError: it is wrong, or takes too long.
            BusyError: too many are being made ready.
        """
        if wanted is None:
            return
        if self._compiling >= _MOST_COMPILING:
            raise BusyError(f"{self._compiling} requests wait for their schemas to be compiled; try again later.")
        self._compiling += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._compilers, lambda: self._llm.grammars.constraint(wanted))
        finally:
            self._compiling -= 1


def failure(body: GenerationBody, sample: Sample, answer: Answer) -> tuple[dict[str, Any], int]:
    """The error body for a sample that failed, and the status if the reply has not begun."""
    message = str(sample.sequence.error)
    if answer.cut_off:
        return error_body("the server is shutting down.", "server_error", code="closing"), 503
    if answer.out_of_memory:
        return error_body(message, "server_error", code="out_of_memory"), 503
    if answer.expired:
        return error_body(message, "server_error", code="timeout"), 504
    if sample.sequence.refused:
        return error_body(message, "invalid_request_error", body.own_name(sample.sequence.error_field)), 400
    return error_body(message, "server_error", code="generation_failed"), 500


@contextmanager
def _blaming(body: GenerationBody) -> Iterator[None]:
    """Let a refusal name the field as this request does, where the engine has another name for it."""
    try:
        yield
    except RequestError as error:
        error.field = body.own_name(error.field)
        raise


def _salt(body: GenerationBody, request: Request) -> str:
    return tenant_salt(request, body.cache_salt or "")


def tenant_salt(request: Request, own: str = "") -> str:
    """A salt that keeps requests of different keys apart: they share nothing; ``own``: the request's."""
    return f"{request.scope.get(TENANT, '')}/{own}"
