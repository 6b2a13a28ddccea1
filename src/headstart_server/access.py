"""What every request passes before a route sees it: the right host, a key, a bounded body."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart_server.bodies import BodyBudget
from headstart_server.error_forms import error_body, error_for
from headstart_server.settings import ServerSettings

TENANT = "headstart.tenant"
"""The key in a request's scope that tells who asks."""
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[^:\[\]]*))(?::\d{0,5})?")
"""As RFC 9110 has it: a name or an address, perhaps with a port; IPv6 in brackets."""


class AccessControl:
    """ASGI middleware. Compares digests of keys, so that time tells nothing of a key or its length.

    Args:
        app: what lies behind.
        settings: keys and bounds.
        open_paths: the only paths that need no key.
        limit: bytes of a request's body at most; 0: nothing reads one, so that it is left where it is.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, open_paths: Collection[str], limit: Callable[[Scope], int]
    ) -> None:
        self._app = app
        self._open_paths = frozenset(open_paths)
        self._settings = settings
        self._limit = limit
        self._bodies = BodyBudget(settings.max_bodies_bytes)
        self._keys = [_digest(key) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Web sockets are not served.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1")
        if self._settings.allowed_hosts is not None and _hostname(host) not in self._settings.allowed_hosts:
            await _refuse(scope, send, 400, "this host name is not served here.", "invalid_request_error", "bad_host")
        elif (tenant := self._tenant(headers)) is None and not self._open(scope):
            missing = "give a valid API key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            await _refuse(scope, send, 401, missing, "authentication_error", "bad_key")
        elif (limit := self._limit(scope)) and _too_long(headers.get(b"content-length", b""), limit):
            await _refuse_body(scope, limit, send)
        else:
            scope[TENANT] = tenant
            if scope["method"] == "HEAD":
                # What GET answers, less its body.
                scope, send = {**scope, "method": "GET"}, _without_body(send)
            await self._bounded(scope, receive, send, limit)

    def _open(self, scope: Scope) -> bool:
        """Whether anybody may ask this: what a path takes is no secret."""
        return scope["path"] in self._open_paths or scope["method"] == "OPTIONS"

    def _tenant(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Who asks: a name derived from the key; "" if no key is needed, None if it is wrong or missing."""
        if not self._keys:
            return ""
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        # The second is how Anthropic's clients send it.
        given = [bearer if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")]
        for digest in (hashlib.sha256(key.strip()).digest() for key in given):
            matches = [secrets.compare_digest(digest, key) for key in self._keys]
            if any(matches):
                return digest.hex()
        return None

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Read the body up to the limit and hand it on, because its announced length may be missing or wrong."""
        with self._bodies.held() as body:
            more, size = limit > 0, 0
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return
                chunk = message.get("body", b"")
                size += len(chunk)
                more = message.get("more_body", False)
                if size > limit:
                    await _refuse_body(scope, limit, send)
                    return
                self._bodies.add(body, chunk)
                if body.refused:
                    full = "the server holds as many bytes of bodies as it may; try again later."
                    retry = (b"retry-after", str(self._settings.retry_after).encode())
                    await _refuse(scope, send, 429, full, "rate_limit_error", "bodies_full", retry)
                    return
            whole = iter([{"type": "http.request", "body": self._bodies.whole(body), "more_body": False}])

            async def again() -> Message:
                return next(whole, None) or await receive()

            await self._app(scope, again, send)


async def _refuse_body(scope: Scope, limit: int, send: Send) -> None:
    await _refuse(scope, send, 413, f"the body is longer than {limit} bytes.", "invalid_request_error", "too_long")


def read_keys(text: str) -> tuple[str, ...]:
    """API keys, one per line; blank lines and comments (#) are skipped."""
    lines: Iterable[str] = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def _without_body(send: Send) -> Send:
    async def headers_alone(message: Message) -> None:
        await send(message if message["type"] == "http.response.start" else {**message, "body": b""})

    return headers_alone


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _hostname(host: str) -> str:
    """A host's name without its port; empty: it is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).lower()


def _too_long(content_length: bytes, limit: int) -> bool:
    return content_length.isdigit() and int(content_length[:20]) > limit


async def _refuse(
    scope: Scope, send: Send, status: int, message: str, kind: str, code: str, *more: tuple[bytes, bytes]
) -> None:
    body = json.dumps(error_for(scope["path"], error_body(message, kind, code=code), status)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
