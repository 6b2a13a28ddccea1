"""The server around the application: whom it listens to, how many at once, and how it ends.

uvicorn speaks HTTP. It accepts whoever comes, waits for half of a request for as long as the client likes, and for a
drain as well; what is here bounds all three (docs/decisions/0048).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from headstart.errors import ConfigError
from headstart_server.connections import Connection, most_idle, overdue

CUT_OFF = "headstart.cut_off"
"""The key in an application's lifespan state of what ends all requests in progress with an error."""

_log = logging.getLogger("uvicorn.error")
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BACKLOG = 2048
_BURST = 16
"""Most connections that are accepted at once, before anything else gets its turn."""
_SPARE_FILES = 32
"""Descriptors left for what is not a connection, besides those that are open at the start."""
_MOST_FILES = 1 << 16
_FEWEST_CONNECTIONS = 8
_HALF_SENT_SECONDS = 2.0
"""Time that a drain gives clients to send the rest of a request, or to read what is ready."""
_PARTING_SECONDS = 1.0
"""Time to tell the clients of requests that were cut off."""
_GRACE = 4.0
"""Time after a drain's end until the process ends, whatever it is doing."""


@dataclass(frozen=True)
class Patience:
    """What clients may take."""

    max_connections: int = 1024
    client_seconds: float = 60.0
    """Longest time without a request, for the rest of one, or without reading an answer that is ready."""
    drain_seconds: float = 30.0
    """Longest time from SIGTERM to the end of the requests in progress."""


class Server(uvicorn.Server):
    """uvicorn's server with bounds on its clients.

    Args:
        app: the ASGI application; ``CUT_OFF`` in its lifespan's state, if there, is called without arguments, on a
            thread, when a drain has taken too long.
        sockets: bound, not yet listening.
        patience: what clients may take.
        announce: called once when the server answers.
    """

    def __init__(
        self, app: ASGIApp, sockets: Sequence[socket.socket], patience: Patience, announce: Callable[[], None]
    ) -> None:
        drain = max(round(patience.drain_seconds + _PARTING_SECONDS), 1)
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                interface="asgi3",
                lifespan="on",
                server_header=False,
                ws="none",
                timeout_keep_alive=max(round(patience.client_seconds), 1),
                timeout_graceful_shutdown=drain,
            )
        )
        self._patience = patience
        self._sockets = list(sockets)
        self._announce = announce
        self._arriving: set[asyncio.Task[object]] = set()
        self._said: set[str] = set()
        self.cut_off = False
        """Whether requests were ended by the end of a drain, or by a second signal."""
        # Errors of requests that are cut off on purpose need no traceback.
        _log.addFilter(lambda record: not ((self.cut_off or self.force_exit) and record.levelno == logging.ERROR))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, with an accept loop of its own."""
        await super().startup(sockets=[])
        if self.should_exit:
            return
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            each.listen(_BACKLOG)
            each.setblocking(False)
            loop.add_reader(each, self._accept, loop, each)
        self._announce()

    async def on_tick(self, counter: int) -> bool:
        """As in uvicorn; once a second, connections whose client has taken too long are dropped."""
        if counter % 10 == 0:
            self._drop_overdue(self._patience.client_seconds)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, with an end."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.remove_reader(each)
            each.close()
        ending = asyncio.create_task(self._hurry(loop.time()))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As in uvicorn; a second signal of either kind ends the server at once."""
        again = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = self.force_exit or again
        _end_after(_GRACE / 2 if again else self._patience.drain_seconds + _PARTING_SECONDS + _GRACE, 128 + sig)

    async def _hurry(self, begun: float) -> None:
        """Drop clients that keep the drain waiting, and cut off what is left at its end."""
        loop = asyncio.get_running_loop()
        end = begun + self._patience.drain_seconds
        while loop.time() < end and not self.force_exit:
            await asyncio.sleep(0.1)
            if loop.time() - begun > _HALF_SENT_SECONDS:
                self._drop_overdue(_HALF_SENT_SECONDS)
        if self.server_state.tasks and not self.force_exit:
            self.cut_off = True
            _log.warning("The drain has taken %g seconds; what is left is cut off.", self._patience.drain_seconds)
            cut_off = self.lifespan.state.get(CUT_OFF)
            if cut_off is not None:
                await asyncio.to_thread(cut_off)

    def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        for _ in range(_BURST):
            if len(self._connections) + len(self._arriving) >= self._patience.max_connections:
                self._make_room(loop, listener)
                return
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._say_once(f"No connection can be accepted: {error.strerror}. Idle ones are closed to make room.")
                self._make_room(loop, listener, rest=True)
                return
            connection.setblocking(False)
            arrival = loop.create_task(self._arrive(loop, connection))
            self._arriving.add(arrival)
            arrival.add_done_callback(self._arriving.discard)

    async def _arrive(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        make = partial(
            Connection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
        )
        try:
            await loop.connect_accepted_socket(make, connection)
        except OSError:  # it has left already
            connection.close()

    def _make_room(self, loop: asyncio.AbstractEventLoop, listener: socket.socket, rest: bool = False) -> None:
        """Drop the connection that can be spared best; without any, accept nobody for a moment."""
        spared = most_idle(self._connections, loop.time())
        if spared is not None:
            self._say_once(
                f"{self._patience.max_connections} connections are open, as many as there may be; for new ones, those "
                "that have been idle for longest are closed."
            )
            spared.drop()
        if spared is None or rest:
            loop.remove_reader(listener)
            loop.call_later(0.1, self._resume, loop, listener)

    def _resume(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # the server may have closed it since
            loop.add_reader(listener, self._accept, loop, listener)

    def _drop_overdue(self, seconds: float) -> None:
        for connection in overdue(list(self._connections), asyncio.get_running_loop().time(), seconds):
            connection.drop()

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning(sentence)

    @property
    def _connections(self) -> set[Connection]:
        return cast(set[Connection], self.server_state.connections)


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of ``host``, all on one port, not yet listening. Port 0: any that is free.

    Raises:
        ConfigError: the address cannot be used.
    """
    with ExitStack() as sockets:
        try:
            each = _bind(host, port, sockets)
        except OSError as error:
            raise ConfigError(
                f"{host}:{port} cannot be listened on: {error.strerror}; give another --host or --port."
            ) from error
        yield each


def _bind(host: str, port: int, sockets: ExitStack) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            each = sockets.enter_context(socket.socket(family, kind, protocol))
        except OSError:  # a family that this machine lacks
            continue
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            each.bind((address[0], port, *address[2:]))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and bound:  # localhost has an IPv6 address, the machine has none
                continue
            raise
        port = each.getsockname()[1]
        bound.append(each)
    if not bound:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return bound


def room_for_connections(wanted: int) -> int:
    """How many of ``wanted`` connections this process can hold; it raises its limit of open files as far as it may.

    Raises:
        ConfigError: there is no room for even a few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    in_use = len(os.listdir("/proc/self/fd"))
    needed = min(wanted + in_use + _SPARE_FILES, _MOST_FILES)
    most = hard if hard != resource.RLIM_INFINITY else _MOST_FILES
    if soft < needed:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, most), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = min(wanted, soft - in_use - _SPARE_FILES)
    if room < min(wanted, _FEWEST_CONNECTIONS):
        raise ConfigError(f"a process may hold {soft} open files here, too few to serve; raise it with ulimit -n.")
    return room


def _end_after(seconds: float, status: int) -> None:
    """End the process, whatever its threads are doing by then: some calls of compiled code cannot be interrupted."""

    def end() -> None:
        time.sleep(seconds)
        os._exit(status)

    threading.Thread(target=end, name="headstart-end", daemon=True).start()


def end_quietly(server: Server) -> None:
    """Let the process end with status 0 once ``server`` has drained: uvicorn raises SIGTERM again, which must not look
    like a failure."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number if server.force_exit else 0)

    signal.signal(signal.SIGTERM, end)
