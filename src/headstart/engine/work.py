"""What an engine is at, and a watchdog that tells who holds it for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LONG_SECONDS = 10.0
"""After which work is told of, and again whenever it has taken twice as long."""
_NAMED = 8
"""Requests that are named."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """A step of an engine's work that cannot be interrupted: nobody else is served meanwhile."""

    what: str
    """As a noun: "the pass"."""
    request_ids: Sequence[int]
    """For whom; beams count as their search."""
    since: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self.since

    def sentence(self) -> str:
        """Who holds the engine, and how long."""
        named = ", ".join(map(str, self.request_ids[:_NAMED]))
        more = len(self.request_ids) - _NAMED
        who = f"request{'s' * (len(self.request_ids) > 1)} {named}{f' and {more} more' if more > 0 else ''}"
        return f"{self.what} of {who} has held the engine for {self.seconds:.0f} s; nobody else is served meanwhile."


class Watchdog:
    """Logs work that takes long, from a thread of its own.

    Args:
        now: what the engine is at; None: nothing.
        seconds: that are long.
    """

    def __init__(self, now: Callable[[], Work | None], seconds: float = LONG_SECONDS) -> None:
        self._now = now
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headstart-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; what was watched is let go."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        told: Work | None = None
        patience = self._seconds
        while not self._ended.wait(self._seconds / 4):
            work = self._now()
            if work is not told:
                told, patience = work, self._seconds
            if work is not None and work.seconds > patience:
                _log.warning("%s", work.sentence())
                patience = 2 * work.seconds
