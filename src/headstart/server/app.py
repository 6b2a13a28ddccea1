"""The routes of ``headstart serve``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from headstart.errors import HeadstartError, RequestError
from headstart.llm import LLM
from headstart.server.doors import Doors, error_body
from headstart.server.engine_thread import BusyError, ClosedError, EngineThread
from headstart.server.generation import Generator, UnknownModelError
from headstart.server.lab_page import add_page, page_files
from headstart.server.lab_routes import add_lab
from headstart.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from headstart.server.replies import Reply
from headstart.server.settings import ServerSettings

_log = logging.getLogger(__name__)


def create_app(
    llm: LLM, settings: ServerSettings, *, max_waiting: int = 64, max_seconds: float | None = None
) -> ASGIApp:
    """The server as an ASGI application; its life cycle starts and ends the engine's thread.

    Args:
        llm: used by nobody else while the application lives.
        settings: bounds and doors.
        max_waiting: samples that may wait beside those that decode.
        max_seconds: wall time of a request; None: as long as it takes.
    """
    engine = EngineThread(llm, max_waiting, max_seconds)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.close)

    # The pages of FastAPI's documentation load scripts from elsewhere; the document itself stays.
    app = FastAPI(title="Headstart", version=version("headstart"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.engine = engine
    _add_error_handlers(app, settings)
    _add_generation(app, Generator(engine, settings))
    _add_texts(app, llm)
    _add_state(app, engine, settings)
    add_page(app)
    add_lab(app, engine, settings)
    doors: ASGIApp = Doors(app, settings, {"/health", *page_files()})
    if settings.cors_origins:
        # Outside of the doors, so that a browser can ask beforehand without a key.
        doors = CORSMiddleware(
            doors, allow_origins=list(settings.cors_origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return doors


def _add_generation(app: FastAPI, generator: Generator) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue texts."""
        return await generator.complete(body, request)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        return await generator.chat(body, request)


def _add_texts(app: FastAPI, llm: LLM) -> None:
    tokenizer = llm.model.tokenizer

    @app.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeBody) -> Response:
        """Token ids of a text or a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give either prompt or messages.")
        if body.messages is not None:
            tokens = (await asyncio.to_thread(llm.encode_chat, body.messages)).token_ids
        else:
            tokens = await asyncio.to_thread(tokenizer.encode, str(body.prompt), body.add_special_tokens)
        return Reply({"tokens": tokens, "count": len(tokens), "max_model_len": llm.engine.limits.max_context})

    @app.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeBody) -> Response:
        """The text of token ids."""
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, False)
        return Reply({"prompt": text})


def _add_state(app: FastAPI, engine: EngineThread, settings: ServerSettings) -> None:
    llm = engine.llm
    started = int(time.time())

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        """The one model."""
        model = {
            "id": settings.served_name,
            "object": "model",
            "created": started,
            "owned_by": "headstart",
            "max_model_len": llm.engine.limits.max_context,
        }
        return Reply({"object": "list", "data": [model]})

    @app.get("/health", response_model=None)
    async def health() -> Response:
        """200 as long as requests are served."""
        serving = engine.alive and not engine.closing
        return Reply({"status": "ok" if serving else "closing"}, 200 if serving else 503)

    @app.get("/version", response_model=None)
    async def server_version() -> Response:
        """Headstart's version."""
        return Reply({"version": version("headstart")})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Counts for Prometheus."""
        text = engine.metrics.render(engine.gauges(), settings.served_name)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/stats", response_model=None)
    async def stats() -> Response:
        """The same counts as JSON, and what is served."""
        served: dict[str, Any] = {
            "model": settings.served_name,
            "backend": llm.model.backend.name,
            "drafters": list(llm.engine.drafters.drafters),
            "default_drafter": llm.engine.drafters.default,
            "max_context": llm.engine.limits.max_context,
            "max_sequences": llm.engine.limits.max_sequences,
        }
        return Reply(served | {"now": engine.gauges(), "totals": engine.metrics.snapshot()})


def _add_error_handlers(app: FastAPI, settings: ServerSettings) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        message = f"{where}: {first['msg']}." if where else f"{first['msg']}."
        return Reply(error_body(message, "invalid_request_error", where or None), 400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return Reply(
            error_body(str(error.detail), "invalid_request_error"), error.status_code, dict(error.headers or {})
        )

    @app.exception_handler(HeadstartError)
    async def refused(request: Request, error: HeadstartError) -> Response:
        match error:
            case BusyError():
                body = error_body(str(error), "rate_limit_error", code="queue_full")
                return Reply(body, 429, {"retry-after": str(settings.retry_after)})
            case ClosedError():
                return Reply(error_body(str(error), "server_error", code="closing"), 503)
            case UnknownModelError():
                return Reply(error_body(str(error), "invalid_request_error", "model", "model_not_found"), 404)
            case RequestError():
                return Reply(error_body(str(error), "invalid_request_error"), 400)
        raise error

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("a request failed unexpectedly.", exc_info=error)
        return Reply(error_body("the server failed to answer this request.", "server_error"), 500)
