"""What the application of one server, in this process, says to chats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from headstart import LLM
from headstart_server.app import create_app
from headstart_server.engine_thread import EngineThread
from headstart_server.settings import ServerSettings


def texts(llm: LLM, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """[body] the answer's text."""
    engine = EngineThread(llm)
    engine.start()

    async def ask() -> list[str]:
        transport = httpx.ASGITransport(create_app(llm, ServerSettings("tiny"), engine=engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            replies = [(await client.post("/v1/chat/completions", json=body)).json() for body in bodies]
        return [str(reply["choices"][0]["message"]["content"]) for reply in replies]

    try:
        return asyncio.run(ask())
    finally:
        engine.close()
