"""Who holds an engine for long is told while it does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from toys import ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.engine.beams import BeamGroup
from headstart.engine.work import Work
from headstart.sampling.params import SamplingParams
from headstart_server.watchdog import Watchdog

VOCAB = 12


class Told(logging.Handler):
    """Waits for the sentence about a law."""

    def __init__(self) -> None:
        super().__init__()
        self.sentences: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())
        if self.sentences[-1].startswith("the law of request 1 has held the engine for "):
            self.came.set()


class Slow:
    """A language that says nothing until somebody was told."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def mask(self, path: Sequence[int]) -> np.ndarray:
        assert self._told.came.wait(30)
        return np.ones(VOCAB, dtype=np.bool_)

    def allowed(self, path: Sequence[int]) -> int:
        return len(path)

    def advance(self, token: int) -> None: ...


def test_a_request_that_holds_the_engine_is_named_while_it_does() -> None:
    """A law that takes very long, of one of three requests: nothing goes on until it was told of."""
    told = Told()
    logging.getLogger("headstart_server.watchdog").addHandler(told)
    law = hashed_logits(VOCAB, order=2)
    engine = toy_engine(ToyBackend(VOCAB, law))
    watchdog = Watchdog(lambda: engine.work, seconds=0.02)
    watchdog.start()

    sequences = [toy_sequence(engine, [i, 1], sequence_id=i) for i in range(3)]
    sequences[1].constraint = Slow(told)
    try:
        run_all(engine, sequences)
    finally:
        watchdog.stop()
        logging.getLogger("headstart_server.watchdog").removeHandler(told)
    assert told.came.is_set()
    assert engine.work is None


@pytest.mark.parametrize(
    ("ids", "who"), [([4], "request 4 "), ([4, 7], "requests 4, 7 "), ([*range(10)], "7 and 2 more ")]
)
def test_several_are_named_up_to_some(ids: list[int], who: str) -> None:
    assert who in Work("a pass", ids).sentence()


def test_beams_count_as_their_search() -> None:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB, order=2)))
    params = SamplingParams(beam_width=3, n=2, max_tokens=4)
    group = BeamGroup([toy_sequence(engine, [1, 2], sequence_id=i, params=params, sample=i) for i in (5, 6)])
    seen: list[list[int]] = []
    forward = engine.runner.forward

    def watched(*arguments: object) -> object:
        assert engine.work is not None
        seen.append(list(engine.work.request_ids))
        return forward(*arguments)  # type: ignore[arg-type]

    engine.runner.forward = watched  # type: ignore[method-assign, assignment]
    run_all(engine, group.results)
    assert seen
    assert all(ids == [5] for ids in seen)


def test_nothing_is_watched_once_it_has_stopped() -> None:
    """Its thread would hold on to an engine whose memory others wait for."""
    looks, goes = threading.Event(), threading.Event()

    def now() -> None:
        looks.set()
        assert goes.wait(30)

    watchdog = Watchdog(now, seconds=0.01)
    watchdog.stop()
    watchdog = Watchdog(now, seconds=0.01)
    watchdog.start()
    assert looks.wait(30)
    threading.Timer(0.05, goes.set).start()
    watchdog.stop()
    assert goes.is_set()
