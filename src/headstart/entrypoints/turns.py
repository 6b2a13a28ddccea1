"""Calls of several threads, and streams that are not read to their end yet, take turns at one engine, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from headstart.engine.engine import Engine
from headstart.engine.stretch import SHOWN_SECONDS, UNSEEN_SECONDS
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import ConfigError

CLOSED = "this LLM is closed; make a new one."


class Turns:
    """An engine that whoever calls runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._lock = Lock()

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            ConfigError: it has been closed.
        """
        if self._engine is None:
            raise ConfigError(CLOSED)
        return self._engine

    def close(self) -> None:
        """End all requests, and let the engine go."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
            self._engine = None

    def admit(self, samples: Sequence[Sample]) -> None:
        """Let samples wait for their turn in the queue.

        Raises:
            RequestError: one cannot be served; those before it wait.
        """
        with self._lock:
            for sample in samples:
                self.engine.add(sample.sequence)

    def rounds(self, samples: Sequence[Sample], wanted: bool) -> Iterator[list[StreamPiece]]:
        """Run the engine until these samples have finished, and yield their new pieces after each pass.

        Passes that other calls run count, too. If ``wanted`` is False, no pieces are made, and rounds are run at
        once for longer while no other call's samples take part.
        """
        finished, own = False, {id(sample.sequence) for sample in samples}
        while not finished:
            with self._lock:
                finished = all(sample.sequence.finished for sample in samples)
                if not finished:
                    engine = self.engine
                    alone = all(id(sequence) in own for sequence in (*engine.running, *engine.waiting))
                    engine.step(UNSEEN_SECONDS if alone and not wanted else SHOWN_SECONDS)
                pieces = [piece for sample in samples if wanted and (piece := sample.next_piece()) is not None]
            yield pieces

    def abort(self, samples: Sequence[Sample]) -> None:
        """End samples that have not finished; others, and those of a closed engine, stay as they are."""
        with self._lock:
            if self._engine is not None:
                for sample in samples:
                    self._engine.abort(sample.sequence)
