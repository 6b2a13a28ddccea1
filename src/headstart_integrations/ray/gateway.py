"""What stands between Serve's proxies and the replicas: an ASGI application that hands requests on.

It reads a request whole, so that the router can see where it belongs, and passes the answer through as it comes. If the
replica is lost before anything was passed on, the request goes to another one; afterwards the answer ends with an error
that says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from starlette.types import Message, Receive, Scope, Send

from headstart_integrations.ray.forwarding import BODY, START, Forwarded
from headstart_integrations.ray.routing_key import routing_key
from headstart_integrations.ray.summing_up import merged_metrics, merged_stats
from headstart_server.error_forms import error_body
from headstart_server.replies import Reply, event

TRIES = 2
"""A request that ends the replica that computes it must not go round them all."""
_log = logging.getLogger(__name__)


class LostReplicaError(Exception):
    """The replica ended while it computed an answer."""


class FullError(Exception):
    """All replicas have as many requests as they take."""


class Replicas(Protocol):
    """What the gateway asks of those behind it."""

    def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        """One replica's messages.

        Raises:
            LostReplicaError, FullError: at the start or on the way.
        """

    async def all(self, request: Forwarded) -> Sequence[dict[str, Any]]:
        """Every replica's whole answer, as ``Replica.whole``; those that are lost are left out."""


class Gateway:
    """The ASGI application. Bodies must be bounded before it (``server.access.AccessControl``).

    Args:
        replicas: those that answer.
        retry_after: seconds that a client is asked to wait if all replicas are full.
    """

    def __init__(self, replicas: Replicas, retry_after: int = 1) -> None:
        self._replicas = replicas
        self._retry_after = retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = await _read(scope, receive)
        if request is None:
            return
        merge = {"/metrics": merged_metrics, "/stats": merged_stats}.get(request.path)
        answering = self._merged(merge, request, send) if merge else self._pass_on(request, send)
        await _while_connected(answering, receive)

    async def _merged(self, merge: Callable[[Sequence[dict[str, Any]]], bytes], request: Forwarded, send: Send) -> None:
        found = await self._replicas.all(request)
        if not found:
            await _refuse(send, _NOBODY, 503)
            return
        refused = next((each for each in found if each["status"] != 200), None)
        body = merge(found) if refused is None else refused["body"]
        kind = b"text/plain; version=0.0.4" if request.path == "/metrics" and refused is None else b"application/json"
        status = 200 if refused is None else refused["status"]
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": START, "status": status, "headers": headers})
        await send({"type": BODY, "body": body})

    async def _pass_on(self, request: Forwarded, send: Send) -> None:
        passing = _Passing(send)
        for tries_left in reversed(range(TRIES)):
            try:
                async for messages in self._replicas.answer(request):
                    for message in messages:
                        await passing.take(message)
            except LostReplicaError:
                _log.warning("a replica was lost while it answered %s.", request.path)
                if passing.begun:
                    await passing.break_off()
                elif tries_left:
                    passing = _Passing(send)
                    continue
                else:
                    await _refuse(send, _LOST, 503)
            except FullError:
                headers = {"retry-after": str(self._retry_after)}
                await _refuse(send, _FULL, 429, headers)
            return


_LOST = error_body("the replica that computed this request ended; send it again.", "server_error", code="replica_lost")
_NOBODY = error_body("no replica is there; try again later.", "server_error", code="no_replica")
_FULL = error_body("all replicas are busy; try again later.", "rate_limit_error", code="queue_full")


async def _refuse(send: Send, body: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> None:
    reply = Reply(body, status, headers)
    await send({"type": START, "status": status, "headers": reply.raw_headers})
    await send({"type": BODY, "body": reply.body})


class _Passing:
    """An answer on its way to the client. Its head is kept back until there is a part of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self.begun = False

    async def take(self, message: Message) -> None:
        if message["type"] == START:
            self._head = message
            return
        if message.get("more_body") and not message.get("body"):
            return
        await self._begin()
        await self._send(message)

    async def break_off(self) -> None:
        """End a stream of events with an error; another answer is cut off, so that half of it is not taken for whole.

        Raises:
            LostReplicaError: it is no stream of events.
        """
        assert self._head is not None
        kinds = [value for name, value in self._head["headers"] if name.lower() == b"content-type"]
        if not any(kind.startswith(b"text/event-stream") for kind in kinds):
            raise LostReplicaError
        await self._send({"type": BODY, "body": event(_LOST).encode()})

    async def _begin(self) -> None:
        if not self.begun:
            assert self._head is not None
            self.begun = True
            await self._send(self._head)


async def _read(scope: Scope, receive: Receive) -> Forwarded | None:
    """The request; None: its client left before it was whole."""
    chunks, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body, headers = b"".join(chunks), [(name.lower(), value) for name, value in scope["headers"]]
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"
    key = routing_key(path, headers, body)
    return Forwarded(key, scope["method"], path, scope.get("query_string", b""), tuple(headers), body)


async def _while_connected(answering: Awaitable[None], receive: Receive) -> None:
    """Give up answering when the client leaves."""
    task = asyncio.ensure_future(answering)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
    finally:
        watcher.cancel()
        task.cancel()
