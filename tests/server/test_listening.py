"""Clients that keep connections and send or read nothing: the server goes on, and it ends."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra 'server'")

from thinning import thorough_but

from headstart.errors import ConfigError
from headstart_server import listening
from headstart_server.listening import CUT_OFF, Patience, Server, bound, room_for_connections

GET = b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_HEAD = b"GET /now HTTP/1.1\r\nhost: loc"
HALF_BODY = b"POST /now HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"
LONG = 60.0


class Served:
    """A server on a thread, and an application that answers at once, later, or without end."""

    def __init__(self, sockets: list[socket.socket], patience: Patience) -> None:
        self.gate, self.later = threading.Event(), threading.Event()
        self.address = sockets[0].getsockname()
        self._up = threading.Event()
        self.server = Server(self._app, sockets, patience, self._up.set)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        assert self._up.wait(LONG)

    def connect(self, data: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.address, timeout=LONG)
        client.sendall(data)
        return client

    async def _app(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["type"] == "lifespan":
            scope["state"][CUT_OFF] = self.gate.set
            for reply in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": reply})
            return
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/later":
            self.later.set()
            await asyncio.to_thread(self.gate.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["path"] == "/endless" and not self.gate.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b"done"})


UPGRADE = (
    b"GET /now HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: %s\r\nsec-websocket-version: 13\r\n\r\n"
)


@contextmanager
def serving(**patience: Any) -> Iterator[Served]:
    with bound("127.0.0.1", 0) as sockets:
        served = Served(sockets, Patience(**patience))
        try:
            yield served
        finally:
            served.gate.set()
            served.server.should_exit = served.server.force_exit = True
            served.thread.join(LONG)
            assert not served.thread.is_alive()


def closed(client: socket.socket) -> bool:
    """Whether the server has closed it without a word; waits for that, or for an answer."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("kept", [b"", HALF_HEAD, HALF_BODY])
def test_connections_that_send_nothing_give_way_to_new_ones(kept: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(max_connections=4) as served, ExitStack() as clients:
        busy = clients.enter_context(served.connect(GET % b"later"))
        assert served.later.wait(LONG)
        idle = [clients.enter_context(served.connect(kept)) for _ in range(9)]
        asking = clients.enter_context(served.connect(GET % b"now"))
        assert asking.recv(15) == b"HTTP/1.1 200 OK"
        assert all(map(closed, idle[:5]))
        served.gate.set()
        assert busy.recv(15) == b"HTTP/1.1 200 OK"
    assert capsys.readouterr().err.count("connections are open") == 1


@pytest.mark.parametrize("kept", thorough_but([HALF_BODY], [b"", HALF_HEAD, HALF_BODY, GET % b"endless"]))
def test_a_client_that_takes_too_long_is_dropped(kept: bytes) -> None:
    with serving(client_seconds=0.5) as served, served.connect(kept), served.connect(GET % b"later") as busy:
        assert served.later.wait(LONG)
        while len(served.server.server_state.connections) > 1:
            threading.Event().wait(0.05)
        served.gate.set()
        assert busy.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "kept",
    thorough_but([b"", HALF_HEAD, GET % b"later"], [b"", HALF_HEAD, HALF_BODY, GET % b"endless", GET % b"later"]),
)
def test_a_drain_has_an_end(kept: bytes) -> None:
    with serving(drain_seconds=0.5) as served, served.connect(kept), served.connect(GET % b"now") as asking:
        assert asking.recv(15) == b"HTTP/1.1 200 OK"
        served.server.should_exit = True
        served.thread.join(LONG)
        assert not served.thread.is_alive()


def test_a_full_table_of_descriptors_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is out of descriptors closes what is idle, and accepts again."""
    failures = iter([True] * 3)
    with serving() as served, ExitStack() as clients:
        idle = [clients.enter_context(served.connect(GET % b"now")) for _ in range(4)]
        assert [client.recv(15) for client in idle] == [b"HTTP/1.1 200 OK"] * 4
        accept = socket.socket.accept

        def accept_or_fail(self: socket.socket) -> Any:
            if next(failures, False):
                raise OSError(24, "Too many open files")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
        asking = clients.enter_context(served.connect(GET % b"now"))
        assert asking.recv(15) == b"HTTP/1.1 200 OK"
    assert capsys.readouterr().err.count("Too many open files") == 1


def test_the_limit_of_open_files_is_raised_and_kept_clear_of(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [100, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.__setitem__(slice(None), wanted))
    monkeypatch.setattr(listening.os, "listdir", lambda _: ["0"] * 20)
    assert room_for_connections(1000) == 1000
    assert limits[0] == 1000 + 20 + 32
    limits[:] = [100, 100]
    assert room_for_connections(1000) == 100 - 20 - 32
    limits[:] = [55, 55]
    with pytest.raises(ConfigError, match="55 open files"):
        room_for_connections(1000)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"x"])
def test_a_wish_to_upgrade_is_answered_as_any_request_without_a_word(
    protocol: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as served, served.connect(UPGRADE % protocol) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
