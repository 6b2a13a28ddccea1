"""An application and its life cycle in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import pytest

from headstart import LLM
from headstart_server.app import create_app
from headstart_server.settings import ServerSettings

SETTINGS = ServerSettings("tiny")
GREEDY = {"temperature": 0, "max_tokens": 12}
CHAT = [{"role": "user", "content": "hello there"}]
Result = TypeVar("Result")


@asynccontextmanager
async def alive(app: Any) -> AsyncIterator[None]:
    """Between start-up and shutdown."""
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {}, "state": {}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await life


def ask(
    llm: LLM,
    work: Callable[[httpx.AsyncClient], Awaitable[Result]],
    settings: ServerSettings = SETTINGS,
    **options: Any,
) -> Result:
    """Serve ``llm`` while ``work`` talks to it; in the end nothing may be left in its engine."""

    async def run() -> Result:
        app = create_app(llm, settings, **options)
        async with alive(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await work(client)

    result = asyncio.run(run())
    assert_empty(llm)
    return result


def assert_empty(llm: LLM) -> None:
    allocator = llm.engine.runner.cache.allocator
    assert llm.engine.idle
    assert allocator.num_free == allocator.num_blocks
    assert not any(map(allocator.references, range(allocator.num_blocks)))
    llm.engine.check()


def post(llm: LLM, path: str, body: Any, settings: ServerSettings = SETTINGS, **options: Any) -> httpx.Response:
    return ask(llm, lambda client: client.post(path, json=body), settings, **options)


def chat_text(llm: LLM, messages: list[dict[str, Any]] = CHAT, **fields: Any) -> str:
    """What a greedy chat answers, to compare other routes with."""
    body = {"messages": messages, **GREEDY, **fields}
    text: str = post(llm, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    return text


def fail_third_pass(llm: LLM, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Rounds go one by one, since of a stretch no pass can be made to fail from here."""
    backend = llm.engine.runner.backend
    forward = backend.forward
    calls = []

    def failing(batch: Any, storage: Any) -> Any:
        calls.append(batch)
        if len(calls) == 3:
            raise error
        return forward(batch, storage)

    monkeypatch.setattr(type(llm.engine.runner), "runs_stretches", False)
    monkeypatch.setattr(backend, "forward", failing)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last, rest = response.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def streamed_calls(deltas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a stream's deltas, as a client puts them together."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls)
                calls[part["index"]] = {**part, "function": dict(part["function"])}
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return [*calls.values()]


def assert_openai_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error
