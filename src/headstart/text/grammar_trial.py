"""Grammars are compiled in a process of their own first, which can be ended: in ours, a costly one could not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

_WORKER = Path(__file__).with_name("grammar_worker.py")
_SECONDS = 1.0
"""Processor time that a grammar may take, up to its first mask."""
_WALL_SECONDS = 60.0
"""After which a process is given up that computes nothing and says nothing."""


class TooCostlyError(Exception):
    """The grammar takes more time or memory than it may."""


class GrammarTrial:
    """Tries grammars, one at a time; its process starts with the first one, and ends with this object.

    Args:
        vocabulary: the attributes of a tokenizer that llguidance reads.
        end_tokens: what ends an output.
        limits: of llguidance's parser.
    """

    def __init__(
        self, vocabulary: Mapping[str, object], end_tokens: Sequence[int], limits: Mapping[str, object]
    ) -> None:
        self._vocabulary = dict(vocabulary)
        self._end_tokens = list(end_tokens)
        self._limits = dict(limits)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._end: weakref.finalize[..., GrammarTrial] | None = None

    def complaint(self, grammar: str) -> str:
        """What is wrong with a grammar, empty if nothing is. Waits for its turn.

        Raises:
            TooCostlyError: it takes too long, or too much memory.
            OSError: no process can be started.
        """
        with self._lock:
            if self._connection is None or self._connection.poll():  # it has ended since
                self._connection = self._started()
            try:
                self._connection.send((grammar, self._limits, _SECONDS))
                if self._connection.poll(_WALL_SECONDS):
                    said: str = self._connection.recv()
                    return said
            except (EOFError, ConnectionError):
                pass
            self._stop()
            raise TooCostlyError

    def _started(self) -> Connection:
        self._stop()
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for us
            )
        self._end = weakref.finalize(self, _ended, process, ours)
        ours.send((self._vocabulary, self._end_tokens))
        return ours

    def _stop(self) -> None:
        self._connection = None
        if self._end is not None:
            self._end()


def _ended(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()
