"""The public routes. They look up the engine in the application's state, so they can be described without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import PlainTextResponse

from headstart.common.installed import installed_points
from headstart.entrypoints.llm import LLM
from headstart.errors import RequestError
from headstart.server import schemas
from headstart.server.chat_protocol import ChatBody, TokenizeBody
from headstart.server.chats import ChatForm
from headstart.server.completions import CompletionForm
from headstart.server.engine_thread import EngineThread
from headstart.server.generation import Generator, tenant_salt
from headstart.server.json_body import JsonRoute
from headstart.server.protocol import CompletionBody, DetokenizeBody, DrafterTextsBody
from headstart.server.replies import Reply
from headstart.server.responses import ResponseForm
from headstart.server.responses_protocol import ResponsesBody
from headstart.server.settings import ServerSettings


@dataclass(frozen=True)
class Served:
    """What an application serves; kept in ``app.state.served``."""

    llm: LLM
    engine: EngineThread
    generator: Generator
    settings: ServerSettings
    started: int = field(default_factory=lambda: int(time.time()))


def _served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


Here = Annotated[Served, Depends(_served)]
"""A route's parameter: what the application serves."""
Answers = dict[int | str, dict[str, Any]]

ROUTES = "headstart.routes"
"""Entry points of this group add to the server: a router, which is described in the OpenAPI document, too; or what is
called with the application (``app.state.served`` is what it serves), and may return the paths that need no key."""


class SizedRouter(APIRouter):
    """Added routes whose bodies have a limit of their own."""

    def body_limit(self, served: Served) -> int:
        """Bytes of a request's body at most; 0: it is left where it is."""
        raise NotImplementedError


def added_routes() -> Iterator[Any]:
    """What other packages add to the server (``ROUTES``)."""
    return (point.load() for point in installed_points(ROUTES))


_ERRORS = {
    400: "The request is wrong, or asks for something impossible.",
    401: "The API key is missing or wrong.",
    404: "Another model is served here.",
    413: "The body is too long.",
    429: "The queue is full; Retry-After says when to ask again.",
    500: "The model or the server failed.",
    503: "The server is shutting down, or has no memory left for this request.",
    504: "The request took longer than allowed.",
}


def answers(model: type | None, description: str, *errors: int, stream: bool = False) -> Answers:
    """What a route may answer, for the OpenAPI document.

    Args:
        model: of the body, where it is JSON.
        description: of the answer.
        errors: status codes; 401 is added, since every route but one needs a key if the server has keys.
        stream: whether it may also be server-sent events.
    """
    good: dict[str, Any] = {"description": description}
    if model is not None:
        good["model"] = model
    if stream:
        good["content"] = {"text/event-stream": {"schema": {}}}
    found: Answers = {200: good}
    for status in sorted({*errors, 401}):
        found[status] = {"description": _ERRORS[status], "model": schemas.ErrorReply}
    return found


GENERATION = (400, 404, 413, 429, 500, 503, 504)
"""Errors of routes that decode."""
router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/completions",
    response_model=None,
    tags=["generation"],
    responses=answers(
        schemas.CompletionReply,
        "The texts; with `stream`, server-sent events of the same form, ended by `[DONE]`.",
        *GENERATION,
        stream=True,
    ),
)
async def completions(body: CompletionBody, request: Request, here: Here) -> Response:
    """Continue texts or lists of token ids."""
    return await here.generator.answer(CompletionForm, body, request)


@router.post(
    "/v1/chat/completions",
    response_model=None,
    tags=["generation"],
    responses=answers(
        schemas.ChatReply,
        "The answers; with `stream`, server-sent events with `delta` instead of `message`, ended by `[DONE]`.",
        *GENERATION,
        stream=True,
    ),
)
async def chat_completions(body: ChatBody, request: Request, here: Here) -> Response:
    """Answer a conversation through the model's own chat template."""
    return await here.generator.answer(ChatForm, body, request)


@router.post(
    "/v1/responses",
    response_model=None,
    tags=["generation"],
    responses=answers(
        schemas.ResponseReply,
        "The response; with `stream`, server-sent events named by their `type`, ended by `response.completed`, "
        "`response.incomplete` or `response.failed`.",
        *GENERATION,
        stream=True,
    ),
)
async def responses(body: ResponsesBody, request: Request, here: Here) -> Response:
    """Answer a conversation given as items; nothing is kept for a later request."""
    return await here.generator.answer(ResponseForm, body, request)


@router.post(
    "/tokenize",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.TokensReply, "The token ids.", 400, 413),
)
async def tokenize(body: TokenizeBody, here: Here) -> Response:
    """Token ids of a text, or of a conversation in the model's chat template."""
    llm = here.llm
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages.", "prompt")
    if body.messages is not None:
        shaped = body.shown_tools(), body.template_variables()
        tokens = (await asyncio.to_thread(llm.encode_chat, body.messages, *shaped)).token_ids
    else:
        tokens = await asyncio.to_thread(llm.model.tokenizer.encode, str(body.prompt), body.add_special_tokens)
    return Reply({"tokens": tokens, "count": len(tokens), "max_model_len": llm.engine.limits.max_context})


@router.post(
    "/detokenize",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.TextReply, "The text.", 400, 413),
)
async def detokenize(body: DetokenizeBody, here: Here) -> Response:
    """The text of token ids."""
    vocab_size = here.llm.model.config.vocab_size
    for token in body.tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(f"tokens holds {token}; this model's ids go from 0 to {vocab_size - 1}.", "tokens")
    text = await asyncio.to_thread(here.llm.model.tokenizer.decode, body.tokens, False)
    return Reply({"prompt": text})


@router.post(
    "/v1/drafter/texts",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.DrafterTextsReply, "How many tokens were taken.", 400, 413),
)
async def drafter_texts(body: DrafterTextsBody, request: Request, here: Here) -> Response:
    """Give drafters texts to copy from: they change how fast requests of the same key and `cache_salt` are answered,
    never what is said."""
    salt = tenant_salt(request, body.cache_salt or "")
    taken = await asyncio.to_thread(here.llm.add_drafter_texts, body.texts, cache_salt=salt)
    return Reply({"object": "drafter.texts", "tokens": taken})


@router.get(
    "/tokenizer_info",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.TokenizerInfo, "The tokenizer's settings; special tokens by their roles."),
)
async def tokenizer_info(here: Here) -> Response:
    """What clients need to cut and lay out texts as this server does, in the form of a tokenizer_config.json."""
    tokenizer = here.llm.model.tokenizer
    roles = {"bos_token": None, "eos_token": None, "pad_token": None, "unk_token": None}
    return Reply(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **roles,
            **tokenizer.special_tokens,
            "model_max_length": here.llm.engine.limits.max_context,
            "clean_up_tokenization_spaces": False,
            "chat_template": here.llm.model.chat_template.default,
            "added_tokens_decoder": {
                str(token_id): {"content": content, "special": special}
                for token_id, (content, special) in tokenizer.added_tokens.items()
            },
        }
    )


@router.get(
    "/v1/models",
    response_model=None,
    tags=["state"],
    responses=answers(schemas.ModelList, "The model, once for each of its names."),
)
async def models(here: Here) -> Response:
    """The one model that is served, under each of its names."""
    return Reply({"object": "list", "data": [_model(here, name) for name in here.settings.names]})


@router.get(
    "/v1/models/{name:path}",
    response_model=None,
    tags=["state"],
    responses=answers(schemas.ServedModel, "The model of that name.", 404),
)
async def model(name: str, here: Here) -> Response:
    """The model that is served, if this is its name."""
    here.generator.check_model(name)
    return Reply(_model(here, name))


def _model(here: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": here.started,
        "owned_by": "headstart",
        "root": here.settings.served_name,
        "max_model_len": here.llm.engine.limits.max_context,
    }


@router.get(
    "/health",
    response_model=None,
    tags=["state"],
    responses={
        200: {"description": "Requests are served.", "model": schemas.HealthReply},
        503: {"description": "The server is shutting down.", "model": schemas.HealthReply},
    },
    openapi_extra={"security": []},
)
async def health(here: Here) -> Response:
    """Whether requests are served; needs no key."""
    serving = here.engine.alive and not here.engine.closing
    return Reply({"status": "ok" if serving else "closing"}, 200 if serving else 503)


@router.get(
    "/version", response_model=None, tags=["state"], responses=answers(schemas.VersionReply, "Headstart's version.")
)
async def server_version() -> Response:
    """The version of the server."""
    return Reply({"version": version("headstart")})


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    tags=["state"],
    responses=answers(None, "Prometheus' text format, version 0.0.4."),
)
async def metrics(here: Here) -> Response:
    """Counts for Prometheus."""
    text = here.engine.metrics.render(here.engine.gauges(), here.settings.served_name)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@router.get(
    "/stats",
    response_model=None,
    tags=["state"],
    responses=answers(schemas.StatsReply, "Gauges and counters."),
)
async def stats(here: Here) -> Response:
    """The counts of `/metrics` as JSON, and what is served."""
    llm, engine = here.llm, here.engine
    return Reply(
        {
            "model": here.settings.served_name,
            "backend": llm.model.backend.name,
            "drafters": list(llm.engine.drafters.drafters),
            "default_drafter": llm.engine.drafters.default,
            "max_context": llm.engine.limits.max_context,
            "max_sequences": llm.engine.limits.max_sequences,
            "now": engine.gauges(),
            "totals": engine.metrics.snapshot(),
        }
    )
