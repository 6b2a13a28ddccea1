"""A request on its way from a gateway to a replica, and an application that is run on it without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

START, BODY = "http.response.start", "http.response.body"


@dataclass(frozen=True)
class Forwarded:
    """One whole HTTP request."""

    key: str
    """``routing_key``."""
    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def scope(self) -> dict[str, Any]:
        """As ASGI describes it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": None,
            "server": None,
            "state": {},
        }


async def answers(app: ASGIApp, request: Forwarded) -> AsyncIterator[list[Message]]:
    """What ``app`` sends, as it sends it; several messages together if they were ready together.

    Closing the iterator tells ``app`` that its client is gone.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    gone = asyncio.Event()
    unread = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(request.scope(), receive, sent.put)
        finally:
            await sent.put(None)

    running = asyncio.create_task(run())
    try:
        while (message := await sent.get()) is not None:
            ready: list[Message | None] = [message]
            while ready[-1] is not None and not sent.empty():
                ready.append(sent.get_nowait())
            yield [each for each in ready if each is not None]
            if ready[-1] is None:
                break
        await running
    finally:
        gone.set()
        if not running.done():
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
