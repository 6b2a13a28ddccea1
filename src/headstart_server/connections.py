"""One connection of the server: what it waits for, since when, and how it is dropped."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Waits(IntEnum):
    """What a connection waits for. The smaller ones are dropped first where room is needed."""

    REQUEST = 0
    """The client has sent no whole request head: it is idle, or stopped in the middle of one."""
    BODY = 1
    """The client has sent a head and a part of its body."""
    READER = 2
    """An answer is ready, and the client does not read it."""
    SERVER = 3
    """A whole request is being served. Such a connection is never dropped."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 with a note of what the connection waits for, and since when (the event loop's seconds)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dropped = False
        self._noted = Waits.REQUEST
        self._begun = False
        """Whether a part of the next request's head has come."""
        self._since = self.loop.time()

    @property
    def waits(self) -> Waits:
        cycle = self.cycle
        if self.flow is not None and self.flow.write_paused:
            return Waits.READER
        if cycle is None or cycle.response_complete:
            return Waits.READER if self.transport.get_write_buffer_size() else Waits.REQUEST
        return Waits.BODY if cycle.more_body else Waits.SERVER

    def waited(self, now: float) -> float:
        """Seconds that it has waited for the same thing; 0 for what the server itself has to do."""
        return 0.0 if self._note(now) is Waits.SERVER else now - self._since

    def data_received(self, data: bytes) -> None:
        """As in uvicorn. A head, and a body, have a time of their own from their first byte on: more bytes of the same
        do not prolong it."""
        now = self.loop.time()
        if self._note(now) is Waits.REQUEST and not self._begun:
            self._since, self._begun = now, True
        super().data_received(data)
        self._note(now)

    def _should_upgrade(self) -> bool:
        """Nothing is upgraded: such a request is answered as any other, and no line of the log is spent on it."""
        return False

    def on_response_complete(self) -> None:
        """As in uvicorn; from now on the connection is idle."""
        super().on_response_complete()
        self._note(self.loop.time())

    def drop(self) -> None:
        """Close it at once, whatever has not been sent yet."""
        self.dropped = True
        self.transport.abort()

    def _note(self, now: float) -> Waits:
        waits = self.waits
        if waits is not self._noted:
            self._noted, self._since, self._begun = waits, now, False
        return waits


def overdue(connections: Iterable[Connection], now: float, seconds: float) -> list[Connection]:
    """Those whose client has kept them waiting for longer than ``seconds``."""
    return [connection for connection in connections if not connection.dropped and connection.waited(now) > seconds]


def most_idle(connections: Iterable[Connection], now: float) -> Connection | None:
    """The one to drop where room is needed: among those that wait for the least, the one that has waited longest."""
    candidates = [each for each in connections if not each.dropped and each.waits is not Waits.SERVER]
    return min(candidates, key=lambda each: (each.waits, -each.waited(now)), default=None)
