"""A lock whose owner cannot take it again before those who wait."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """Threads hold it one at a time, in the order in which they asked: ``with lock: ...``.

    A ``threading.Lock`` goes to whoever is quickest, which is mostly the thread that has just released it.
    """

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._held = False
        self._tickets: deque[threading.Lock] = deque()
        """A held lock each; releasing it hands the turn over."""

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return len(self._tickets)

    def __enter__(self) -> None:
        with self._state:
            if not self._held:
                self._held = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._tickets.append(ticket)
        try:
            ticket.acquire()
        except BaseException:  # an interrupted wait must not keep the turn
            with self._state:
                if ticket in self._tickets:
                    self._tickets.remove(ticket)
                    raise
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._state:
            if self._tickets:
                self._tickets.popleft().release()
            else:
                self._held = False
