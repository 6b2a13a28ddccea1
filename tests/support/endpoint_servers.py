"""Servers on a port of this machine for audits from outside: Headstart's own, and ones that are wrong on purpose."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from headstart import LLM
from headstart_server.app import create_app
from headstart_server.settings import ServerSettings

Json = dict[str, Any]
Change = Callable[[Json], None]


class Mutant:
    """An ASGI application in front of another one, that changes requests for text, their replies, or both.

    ``change_request`` is also told how many such requests are under way, itself included.
    """

    def __init__(
        self,
        app: Any,
        change_request: Callable[[Json, int], None] = lambda body, busy: None,
        change_reply: Change = lambda reply: None,
    ) -> None:
        self._app, self._change_request, self._change_reply = app, change_request, change_reply
        self._busy = set[object]()

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("completions"):
            await self._app(scope, receive, send)
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        body, request = json.loads(raw), object()
        self._busy.add(request)

        async def last(message: Any) -> None:
            # Who has read all of an answer may ask again at once.
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._busy.discard(request)
            await send(message)

        try:
            self._change_request(body, len(self._busy))
            await self._forward(scope, json.dumps(body).encode(), receive, last)
        finally:
            self._busy.discard(request)

    async def _forward(self, scope: Json, raw: bytes, receive: Any, send: Any) -> None:
        given = False

        async def changed_request() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": raw, "more_body": False}

        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(raw)).encode())]}
        head: list[Any] = []
        said: list[bytes] = []

        async def changed_reply(message: Any) -> None:
            if message["type"] == "http.response.start":
                head.append(message)
                return
            said.append(message.get("body", b""))
            if message.get("more_body"):
                return
            text = self._changed(b"".join(said).decode()).encode()
            kept = [(name, value) for name, value in head[0]["headers"] if name != b"content-length"]
            await send({**head[0], "headers": [*kept, (b"content-length", str(len(text)).encode())]})
            await send({"type": "http.response.body", "body": text})

        await self._app(scope, changed_request, changed_reply)

    def _changed(self, text: str) -> str:
        def one(data: str) -> str:
            reply = json.loads(data)
            if "error" not in reply:
                self._change_reply(reply)
            return json.dumps(reply)

        if not text.startswith("data:"):
            return one(text)
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return "".join(f"data: {line if line == '[DONE]' else one(line)}\n\n" for line in lines)


@contextmanager
def served(llm: LLM, wrap: Callable[[Any], Any] = lambda app: app, **settings: Any) -> Iterator[str]:
    """The address of a server that is gone afterwards."""
    app = wrap(create_app(llm, ServerSettings("tiny", **settings)))
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
