"""A process that does work whose cost nobody knows beforehand: unlike a thread of ours, it can be ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headstart.common.fair_lock import FairLock

_LONGEST_ANSWER = 1 << 26
"""Bytes."""


class EndedError(Exception):
    """The process ended over its work, or was ended: it took more time or memory than it may."""


class BoundedProcess:
    """One piece of work at a time; the process starts with the first one, and ends with this object.

    It bounds its own processor time and memory (``limit_memory``), so that a busy machine refuses nothing that an idle
    one does. A fork of this process gets a process of its own.

    Args:
        script: what it runs, with the descriptor of its connection as the argument.
        setup: what is sent before any work.
        wall_seconds: after which a process is given up that computes nothing and says nothing.
    """

    def __init__(self, script: Path, setup: tuple[object, ...] = (), wall_seconds: float = 60.0) -> None:
        self._script = script
        self._setup = setup
        self._wall_seconds = wall_seconds
        self._connection: Connection | None = None
        self._owner = os.getpid()
        """The process that asks it."""
        self._turns = FairLock()
        self._end: weakref.finalize[..., BoundedProcess] | None = None

    @property
    def running(self) -> bool:
        """Whether it can be asked at once."""
        alive = self._connection is not None and self._owner == os.getpid()
        return alive and not (self._connection is None or self._connection.poll())

    def ask(self, *work: object) -> Any:
        """What the process answers, as JSON has it. Threads take turns, first come first served.

        Raises:
            EndedError: it ended over this work.
            OSError: no process can be started.
        """
        if self._owner != os.getpid():  # a fork: its parent's process and lock are not ours
            self._owner, self._turns, self._connection, self._end = os.getpid(), FairLock(), None, None
        with self._turns:
            return self._answered(work)

    def _answered(self, work: tuple[object, ...]) -> Any:
        connection = self._connection if self.running else self._started()
        assert connection is not None
        try:
            connection.send(work)
            if connection.poll(self._wall_seconds):
                # What runs there may be hostile, so that nothing but JSON is taken from it.
                return json.loads(connection.recv_bytes(_LONGEST_ANSWER))
        except (EOFError, OSError, ValueError):
            pass
        self.stop()
        raise EndedError

    def stop(self) -> None:
        """End it; further work starts another."""
        self._connection = None
        if self._end is not None:
            self._end()

    def _started(self) -> Connection:
        self.stop()
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", str(self._script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for us
            )
        self._end = weakref.finalize(self, _ended, process, ours, self._owner)
        self._connection = ours
        if self._setup:
            ours.send(self._setup)
        return ours


def _ended(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    connection.close()
    if owner == os.getpid():  # a fork leaves its parent's alone
        process.kill()
        process.wait()


def answer(connection: Connection, *said: object) -> None:
    """What the process says to the work that it was asked for."""
    connection.send_bytes(json.dumps(said).encode())


def limit_memory(most_bytes: int) -> None:
    """Bound this process's address space, and leave no core of it behind."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes if most < 0 else min(most_bytes, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def address_space() -> int:
    """Bytes of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
