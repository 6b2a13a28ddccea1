"""Tells who holds an engine for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headstart.engine.work import Work

LONG_SECONDS = 10.0
"""After which work is told of, and again whenever it has taken twice as long."""
_log = logging.getLogger(__name__)


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
