"""The public routes. They look up the engine in the application's state, so they can be described without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import PlainTextResponse

from headstart.common.installed import installed_points
from headstart.errors import RequestError
from headstart_server import schemas
from headstart_server.chat_protocol import ChatBody, TokenizeBody
from headstart_server.chats import ChatForm
from headstart_server.completions import CompletionForm
from headstart_server.forms import Form
from headstart_server.generation import tenant_salt
from headstart_server.json_body import JsonRoute
from headstart_server.metrics import rendered
from headstart_server.models import ListedModel, Models, NotLoadedError, Served, known_name
from headstart_server.protocol import (
    CompletionBody,
    DetokenizeBody,
    DrafterTextsBody,
    GenerationBody,
    LoadAdapterBody,
    UnloadAdapterBody,
)
from headstart_server.replies import Reply
from headstart_server.responses import ResponseForm
from headstart_server.responses_protocol import ResponsesBody

B = TypeVar("B", bound=GenerationBody)


def _models(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


Here = Annotated[Models, Depends(_models)]
"""A route's parameter: what the application serves (``app.state.models``)."""
Named = Annotated[str | None, Query(max_length=500)]
"""A route's parameter: the name of a model."""
Answers = dict[int | str, dict[str, Any]]

ROUTES = "headstart.routes"
"""Entry points of this group add to the server: a router, which is described in the OpenAPI document, too; or what is
called with the application (``app.state.models`` is what it serves), and may return the paths that need no key."""


class SizedRouter(APIRouter):
    """Added routes whose bodies have a limit of their own."""

    def body_limit(self, models: Models) -> int:
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
    501: "The server was not started for this.",
    500: "The model or the server failed.",
    503: "The server is shutting down, or has no memory left for this request.",
    504: "The request took longer than allowed.",
}


def answers(
    model: type | None,
    description: str,
    *errors: int,
    stream: bool = False,
    error: type = schemas.ErrorReply,
) -> Answers:
    """What a route may answer, for the OpenAPI document.

    Args:
        model: of the body, where it is JSON.
        description: of the answer.
        errors: status codes; 401 is added, since every route but one needs a key if the server has keys.
        stream: whether it may also be server-sent events.
        error: the form of the errors.
    """
    good: dict[str, Any] = {"description": description}
    if model is not None:
        good["model"] = model
    if stream:
        good["content"] = {"text/event-stream": {"schema": {}}}
    found: Answers = {200: good}
    for status in sorted({*errors, 401}):
        found[status] = {"description": _ERRORS[status], "model": error}
    return found


GENERATION = (400, 404, 413, 429, 500, 503, 504)
"""Errors of routes that decode."""
OF_A_MODEL = (404, 429, 503)
"""Errors of routes that need a model, which may have to be loaded."""


async def answer(
    form: type[Form[B]], body: B, request: Request, here: Models, keep_alive: float | None = None
) -> Response:
    """The answer of the model that a request names; ``keep_alive``: see ``Models.held``."""
    served = await here.held(body.model, request, keep_alive)
    return await served.generator.answer(form, body, request, served.llm, served.settings)


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
    return await answer(CompletionForm, body, request, here)


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
    return await answer(ChatForm, body, request, here)


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
    return await answer(ResponseForm, body, request, here)


@router.post(
    "/tokenize",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.TokensReply, "The token ids.", 400, 413, *OF_A_MODEL),
)
async def tokenize(body: TokenizeBody, request: Request, here: Here) -> Response:
    """Token ids of a text, or of a conversation in the model's chat template."""
    llm = (await here.held(body.model, request)).llm
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
    responses=answers(schemas.TextReply, "The text.", 400, 413, *OF_A_MODEL),
)
async def detokenize(body: DetokenizeBody, request: Request, here: Here) -> Response:
    """The text of token ids."""
    model = (await here.held(body.model, request)).llm.model
    vocab_size = model.config.vocab_size
    for token in body.tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(f"tokens holds {token}; this model's ids go from 0 to {vocab_size - 1}.", "tokens")
    text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, False)
    return Reply({"prompt": text})


@router.post(
    "/v1/drafter/texts",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.DrafterTextsReply, "How many tokens were taken.", 400, 413, *OF_A_MODEL),
)
async def drafter_texts(body: DrafterTextsBody, request: Request, here: Here) -> Response:
    """Give drafters texts to copy from: they change how fast requests of the same key and `cache_salt` are answered,
    never what is said."""
    salt = tenant_salt(request, body.cache_salt or "")
    llm = (await here.held(body.model, request)).llm
    taken = await asyncio.to_thread(llm.add_drafter_texts, body.texts, cache_salt=salt)
    return Reply({"object": "drafter.texts", "tokens": taken})


@router.post(
    "/v1/load_lora_adapter",
    response_class=PlainTextResponse,
    tags=["state"],
    responses=answers(None, "The adapter answers to its name from now on.", 400, 413, *OF_A_MODEL),
)
async def load_lora_adapter(body: LoadAdapterBody, request: Request, here: Here) -> Response:
    """Load a LoRA adapter from a folder or a .gguf file of the server's machine, which requests may name as their
    model."""
    name, llm = body.lora_name, (await here.held(body.model, request)).llm
    async with here.adapting:
        if known_name(name, [each.name for each in here.listed()]) is not None:
            raise RequestError(f"lora_name {name!r} is served already; unload it first, or take another.", "lora_name")
        await asyncio.to_thread(llm.adapters.load, name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post(
    "/v1/unload_lora_adapter",
    response_class=PlainTextResponse,
    tags=["state"],
    responses=answers(None, "No new request gets the adapter; those that have it keep it.", 400, 413, *OF_A_MODEL),
)
async def unload_lora_adapter(body: UnloadAdapterBody, here: Here) -> Response:
    """Forget an adapter."""
    async with here.adapting:
        listed = here.known(body.lora_name)
        if listed.parent is None or listed.served is None:
            raise RequestError(f"lora_name {body.lora_name!r} is no loaded adapter.", "lora_name")
        listed.served.llm.adapters.pop(listed.name, None)
    return PlainTextResponse(f"Success: LoRA adapter '{listed.name}' removed successfully.")


@router.get(
    "/tokenizer_info",
    response_model=None,
    tags=["text"],
    responses=answers(schemas.TokenizerInfo, "The tokenizer's settings; special tokens by their roles.", *OF_A_MODEL),
)
async def tokenizer_info(request: Request, here: Here, model: Named = None) -> Response:
    """What clients need to cut and lay out texts as this server does, in the form of a tokenizer_config.json."""
    llm = (await here.held(model, request)).llm
    tokenizer = llm.model.tokenizer
    roles = {"bos_token": None, "eos_token": None, "pad_token": None, "unk_token": None}
    return Reply(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **roles,
            **tokenizer.special_tokens,
            "model_max_length": llm.engine.limits.max_context,
            "clean_up_tokenization_spaces": False,
            "chat_template": llm.model.chat_template.default,
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
    responses=answers(schemas.ModelList, "The models, each once for each of its names."),
)
async def models(here: Here) -> Response:
    """The models that are served, under each of their names."""
    return Reply({"object": "list", "data": [_model(here, each) for each in here.listed()]})


@router.get(
    "/v1/models/{name:path}",
    response_model=None,
    tags=["state"],
    responses=answers(schemas.ServedModel, "The model of that name.", 404),
)
async def model(name: str, here: Here) -> Response:
    """The model of this name, loaded or not."""
    return Reply(_model(here, here.known(name)))


def _model(here: Models, listed: ListedModel) -> dict[str, Any]:
    loaded = listed.served
    return {
        "id": listed.name,
        "object": "model",
        "created": here.started,
        "owned_by": "headstart",
        "root": listed.root,
        "max_model_len": None if loaded is None else loaded.llm.engine.limits.max_context,
        "parent": listed.parent,
        "status": {"value": str(listed.state)},
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
    return Reply({"status": "ok" if here.serving else "closing"}, 200 if here.serving else 503)


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
    each = [(served.engine.metrics, served.engine.gauges(), served.settings.served_name) for served in here.loaded]
    return PlainTextResponse(rendered(each), media_type="text/plain; version=0.0.4")


@router.get(
    "/stats",
    response_model=None,
    tags=["state"],
    responses=answers(schemas.StatsReply, "Gauges and counters.", 404, 503),
)
async def stats(here: Here, model: Named = None) -> Response:
    """The counts of `/metrics` as JSON, and what is served: by the model of this name, if it is loaded."""
    listed = here.known(model)
    if listed.served is None:
        raise NotLoadedError(f"model {listed.name!r} is not loaded; it has no counts.", again=False)
    served: Served = listed.served
    llm, engine = served.llm, served.engine
    return Reply(
        {
            "model": served.settings.served_name,
            "backend": llm.model.backend.name,
            "drafters": list(llm.engine.drafters.drafters),
            "default_drafter": llm.engine.drafters.default,
            "max_context": llm.engine.limits.max_context,
            "max_sequences": llm.engine.limits.max_sequences,
            "now": engine.gauges(),
            "totals": engine.metrics.snapshot(),
        }
    )
