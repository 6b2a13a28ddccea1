"""The lab page at ``/`` of a server: its static files, a conversation with each round as it was verified, and how
biased rules drift."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.routing import Route

from headstart.common.enumerations import VerifyRule
from headstart.drafting.registry import available_drafters
from headstart.errors import RequestError
from headstart_lab.page.api_docs import HEADERS
from headstart_lab.page.events import LabEvents, lab_prompt
from headstart_lab.page.files import MEDIA_TYPES, page_files
from headstart_lab.page.rules_at_work import TRIALS, rules_at_work
from headstart_lab.provenance import provenance
from headstart_server.access import TENANT
from headstart_server.async_engine import Answer
from headstart_server.engine_thread import EngineThread
from headstart_server.fields import ListOf
from headstart_server.json_body import JsonRoute
from headstart_server.models import Served
from headstart_server.protocol import GenerationBody, Speculation
from headstart_server.replies import Reply, event
from headstart_server.routes import Here

router = APIRouter(route_class=JsonRoute, include_in_schema=False)

Share = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Trials = Annotated[int, Query(ge=100, le=1_000_000)]
Seed = Annotated[int, Query(ge=0, lt=2**32)]


class RunBody(GenerationBody):
    """``POST /lab/run``: like ``/v1/chat/completions``, but without tools."""

    messages: ListOf[dict[str, Any]]


def add_lab(app: FastAPI) -> Collection[str]:
    """Add the page and its routes under ``/lab/`` (entry point group ``headstart.routes``).

    Returns:
        Paths of its files, which need no key: the page itself asks for it and sends it with every request for data.
    """
    app.routes.extend(router.routes)
    app.routes.extend(_file(url, path.read_bytes(), MEDIA_TYPES[path.suffix]) for url, path in page_files().items())
    return page_files().keys()


@router.get("/lab/biased-rules")
async def _rules(likeness: Share = 0.3, trials: Trials = TRIALS, seed: Seed = 0) -> Response:
    return Reply(await asyncio.to_thread(rules_at_work, likeness, trials, seed))


@router.get("/lab/state")
async def _state(request: Request, here: Here) -> Response:
    return Reply(await asyncio.to_thread(_state_of, await here.held(None, request)))


@router.post("/lab/run")
async def _run(body: RunBody, request: Request, here: Here) -> Response:
    """Answer a conversation, round by round."""
    if (body.n or 1) != 1:
        raise RequestError(f"n is {body.n}; the lab shows one sample.", "n")
    served = await here.held(body.model, request)
    llm, engine = served.llm, served.engine
    params = await asyncio.to_thread(body.sampling, served.settings, llm.sampling_defaults, body.max_tokens, None)
    await served.generator.compile(params.structured_outputs)
    prompt = await asyncio.to_thread(lab_prompt, llm, body.messages)
    wishes = (body.speculation or Speculation()).params(llm.speculation)
    # A fresh salt, so that neither cached prefixes nor what drafters learnt from another run flatters this one.
    salt = f"{request.scope.get(TENANT, '')}/lab/{secrets.token_hex(8)}"
    samples = await asyncio.to_thread(llm.samples, prompt, params, wishes, cache_salt=salt, trace=True)
    answer = await engine.submit(samples)
    return StreamingResponse(_events(engine, answer, request), media_type="text/event-stream")


def _state_of(served: Served) -> dict[str, Any]:
    llm = served.llm
    summaries = {name: info.summary for name, info in available_drafters().items()}
    drafters = llm.engine.drafters
    return {
        "model": served.settings.served_name,
        "backend": llm.model.backend.name,
        "machine": _machine(),
        "version": version("headstart"),
        "drafters": [{"name": name, "summary": summaries.get(name, "")} for name in drafters.drafters],
        "default_drafter": drafters.default,
        "rules": [rule.value for rule in VerifyRule],
        "max_context": llm.engine.limits.max_context,
        "max_tree": llm.engine.limits.draft_rows,
    }


@cache
def _machine() -> dict[str, Any]:
    """Where the page's figures are measured."""
    where = provenance()
    return {name: where[name] for name in ("cpu", "cores", "threads")}


async def _events(engine: EngineThread, answer: Answer, request: Request) -> AsyncIterator[str]:
    (sample,) = answer.samples
    told = LabEvents(sample, answer.drafter, engine.llm.model.tokenizer)
    async with engine.watched(answer, request):
        yield event(told.start())
        async for piece in answer:
            for each in told.of(piece):
                yield event(each)


def _file(url: str, body: bytes, media_type: str) -> Route:
    async def file(request: Request) -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)

    return Route(url, file, include_in_schema=False)
