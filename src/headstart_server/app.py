"""The application of ``headstart serve``: its routes, who may enter, and how each error is answered."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Scope

from headstart.common.memory import is_lack_of_memory
from headstart.entrypoints.llm import LLM
from headstart.errors import HeadstartError, RequestError
from headstart_server.access import AccessControl
from headstart_server.async_engine import BusyError, ClosedError
from headstart_server.client_routes import router as client_router
from headstart_server.engine_thread import EngineThread
from headstart_server.error_forms import error_body, error_for
from headstart_server.json_body import BadBody, JsonRoute
from headstart_server.listening import CUT_OFF
from headstart_server.models import Holding, Models, NotLoadedError, OneModel, Served, UnknownModelError
from headstart_server.openapi import describe
from headstart_server.replies import Reply
from headstart_server.routes import SizedRouter, added_routes, router
from headstart_server.settings import ServerSettings

_log = logging.getLogger(__name__)


def create_app(
    llm: LLM,
    settings: ServerSettings,
    *,
    max_waiting: int = 64,
    max_seconds: float | None = None,
    engine: EngineThread | None = None,
) -> ASGIApp:
    """The server as an ASGI application; it starts and ends the engine's thread when it starts and ends itself.

    Args:
        llm: must not be used by anything else while the application runs.
        settings: whom the server lets in, and its limits.
        max_waiting: samples that may wait besides those that are being decoded.
        max_seconds: longest wall time of a request; None: no limit.
        engine: of ``llm``, if it has been started already; it has its own ``max_waiting`` and ``max_seconds``.
    """
    engine = engine or EngineThread(llm, max_waiting, max_seconds)
    return app_of(OneModel(Served.of(llm, engine, settings)))


def app_of(models: Models) -> ASGIApp:
    """The same of whatever models there are."""
    settings = models.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        await models.start()
        yield {CUT_OFF: models.stop}
        await models.close()

    # FastAPI's documentation pages load scripts from other servers; there is one of our own. Routes are shared: to
    # include a router would make all of them anew with the first request.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, routes=[*router.routes, *client_router.routes])
    app.state.models = models
    app.router.route_class = JsonRoute
    # Built on the first request, then kept.
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    _add_error_handlers(app, settings)
    open_paths = {"/health"}
    sized = list[SizedRouter]()
    for added in added_routes():
        if isinstance(added, APIRouter):
            app.routes.extend(added.routes)
            sized += [added] if isinstance(added, SizedRouter) else []
        else:
            open_paths.update(added(app) or ())
    checked: ASGIApp = AccessControl(Holding(app), settings, open_paths, partial(_body_limit, app, sized))
    if settings.cors_origins:
        # Outside access control, because browsers send preflight requests without a key.
        checked = CORSMiddleware(
            checked,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
        )
    return checked


def _body_limit(app: FastAPI, sized: Sequence[SizedRouter], scope: Scope) -> int:
    """Bytes of a request's body at most: none where no route reads it."""
    if scope["method"] != "POST" or not _serves(app.routes, scope):
        return 0
    models: Models = app.state.models
    limits = (router.body_limit(models) for router in sized if _serves(router.routes, scope))
    return next(limits, models.settings.max_body_bytes)


def _serves(routes: Iterable[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


def _add_error_handlers(app: FastAPI, settings: ServerSettings) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        message, field = _complaint(error.errors()[0])
        return _told(request, error_body(message, "invalid_request_error", field), 400)

    @app.exception_handler(BadBody)
    async def bad_body(request: Request, error: BadBody) -> Response:
        return _told(request, error_body(error.detail, "invalid_request_error", error.field), 400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = _allowed(request)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": allowed})
            error.headers = {"allow": allowed}
        message = _sentence(error, request)
        body = error_body(message, "invalid_request_error")
        return _told(request, body, error.status_code, dict(error.headers or {}))

    @app.exception_handler(HeadstartError)
    async def refused(request: Request, error: HeadstartError) -> Response:
        match error:
            case BusyError():
                body = error_body(str(error), "rate_limit_error", code="queue_full")
                return _told(request, body, 429, {"retry-after": str(settings.retry_after)})
            case ClosedError():
                return _told(request, error_body("the server is shutting down.", "server_error", code="closing"), 503)
            case NotLoadedError():
                body = error_body(str(error), "server_error", code="model_not_loaded")
                return _told(request, body, 503, {"retry-after": str(settings.retry_after)} if error.again else {})
            case UnknownModelError():
                body = error_body(str(error), "invalid_request_error", error.field, "model_not_found")
                return _told(request, body, 404)
            case RequestError():
                return _told(request, error_body(str(error), "invalid_request_error", error.field), 400)
        raise error

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        if is_lack_of_memory(error):
            message = "there is no memory left for this request; try again later."
            return _told(request, error_body(message, "server_error", code="out_of_memory"), 503)
        _log.error("a request failed unexpectedly.", exc_info=error)
        return _told(request, error_body("the server failed to answer this request.", "server_error"), 500)


def _told(request: Request, body: dict[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Reply(error_for(request.url.path, body, status), status, headers)


def _allowed(request: Request) -> str:
    """The methods that a request's path takes; the frameworks' own list may miss some."""
    taken = [method for method in ("GET", "POST") if _serves(request.app.routes, {**request.scope, "method": method})]
    return ", ".join(sorted([*taken, "OPTIONS", *(["HEAD"] if "GET" in taken else [])]))


_ELSEWHERE = {
    **dict.fromkeys(
        ("/v1/embeddings", "/api/embed", "/api/embeddings", "/embedding", "/embeddings", "/pooling"),
        "embeddings are not made here, since speculation has nothing to speed up there; vLLM (--runner pooling), "
        "llama.cpp (llama-server --embeddings) and text-embeddings-inference make them.",
    ),
    **dict.fromkeys(
        ("/v1/rerank", "/rerank", "/v1/score", "/score", "/v2/rerank", "/reranking", "/v1/reranking"),
        "nothing is ranked here, since speculation has nothing to speed up there; vLLM (--runner pooling), llama.cpp "
        "(llama-server --reranking) and text-embeddings-inference do it.",
    ),
    **dict.fromkeys(
        ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"),
        "models are not managed over HTTP here; put files into the directory of --models, and start the server again.",
    ),
}
"""Paths that other servers have -> what to do instead."""


def _sentence(error: HTTPException, request: Request) -> str:
    """The frameworks' own errors, in our words."""
    what = f"{request.method} {request.url.path}"
    match error.status_code:
        case 400:
            return "the body is not JSON that can be read: it is nested too deeply, or holds too long a number."
        case 404 if request.url.path in _ELSEWHERE:
            return _ELSEWHERE[request.url.path]
        case 404:
            return f"{what} is not served here; GET /openapi.json says what is."
        case 405:
            return f"{what} is not served here; this path takes another method."
    return str(error.detail)


def _complaint(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """What is wrong with a body, as a sentence, and in which field."""
    field = ".".join(str(part) for part in error["loc"] if part != "body")
    if error["type"] == "json_invalid":
        return f"the body is not JSON ({error['ctx']['error']} at character {field}).", None
    if not field:
        return "the body is not a JSON object; send one, with content-type application/json.", None
    if error["type"] == "extra_forbidden":
        return f"{field}: there is no such field; leave it out.", field
    return f"{field}: {error['msg']}.", field
