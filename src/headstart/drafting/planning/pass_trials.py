"""Times some passes of the target before the first request, on scratch cache blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headstart.passes.runner import ModelRunner, Span, Wanted

_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
"""Rows of the passes; the last is about what 16 sequences and the guesses of a default engine take."""
_MOST_SECONDS = 1.0
"""All together: where a pass takes long, fewer of them are run."""
_CONTEXT, _LEAST_CONTEXT = 1024, 256
"""Tokens of a context that is tried, and the fewest that tell anything."""
_MANY, _REPEATS = 12, 3
"""Rows of the larger of its passes, and how often each is timed."""
_LEAST_DIFFERENCE = 0.5
"""By how many distinct experts passes must differ to tell what one takes."""
_SCRATCH = -1
"""A sequence of this id takes the rows; requests count from 0."""


class TriedPass(NamedTuple):
    """A pass that was timed."""

    rows: int
    seconds: float
    experts: float | None = None
    """As in ``PassOutput``."""


class Trials(NamedTuple):
    """What was found out before the first request."""

    passes: Sequence[TriedPass] = ()
    per_key: float = 0.0
    """Seconds of a row for each token of its context; 0: not known."""
    per_expert: float = 0.0
    """Seconds of a distinct expert that a pass calls; 0: not known, or there are none."""


def try_all(runner: ModelRunner) -> Trials:
    """All trials of this module."""
    return Trials(try_passes(runner), try_context(runner), try_experts(runner))


def try_passes(runner: ModelRunner, of: Sequence[int] = _ROWS) -> list[TriedPass]:
    """Passes of rising size, ``of`` so many rows, as far as they fit in the cache, the positions and about a second.

    Nothing is committed, and the cache is left as it was.
    """
    room = runner.cache.num_free_tokens - _memory_tokens(runner)
    sizes = [rows for rows in of if rows <= min(room, _positions(runner))]
    if not sizes:
        return []
    began = time.perf_counter()
    tried: list[TriedPass] = []
    runner.cache.add(_SCRATCH, source=runner.trial_source)
    try:
        # The first one touches weights and cache blocks that may not have been read yet: it tells nothing.
        _pass(runner, sizes[-1])
        for rows in sizes:
            if time.perf_counter() - began > _MOST_SECONDS:
                break
            _settle(runner, rows)
            start = time.perf_counter()
            experts = _pass(runner, rows)
            tried.append(TriedPass(rows, time.perf_counter() - start, experts))
    finally:
        runner.cache.remove(_SCRATCH)
    return tried


def try_context(runner: ModelRunner) -> float:
    """Seconds that a row of a pass takes for each token of its context: what rows cost beyond one, with a context and
    without. 0 where there is no room for one or passes take long.

    The context's keys and values are what the cache holds there; nothing is computed for them.
    """
    room = (runner.cache.num_free_tokens - _memory_tokens(runner) - _MANY) // 2
    length = min(_CONTEXT, room, _positions(runner) - _MANY)
    if length < _LEAST_CONTEXT:
        return 0.0
    taken: dict[tuple[int, int], list[float]] = {}
    runner.cache.add(_SCRATCH, source=runner.trial_source)
    try:
        for context in (0, length):
            with runner.cache.reserve({_SCRATCH: context}, final={_SCRATCH}):
                runner.cache.commit(_SCRATCH, range(context))
            for rows in (1, _MANY):
                _settle(runner, rows)
            for _ in range(_REPEATS):
                for rows in (1, _MANY):
                    start = time.perf_counter()
                    _pass(runner, rows)
                    seconds = time.perf_counter() - start
                    if 4 * _REPEATS * seconds > _MOST_SECONDS:
                        return 0.0
                    taken.setdefault((context, rows), []).append(seconds)
    finally:
        runner.cache.remove(_SCRATCH)
    beyond = [min(taken[context, _MANY]) - min(taken[context, 1]) for context in (0, length)]
    return max(0.0, beyond[1] - beyond[0]) / ((_MANY - 1) * length)


def try_experts(runner: ModelRunner) -> float:
    """Seconds that a pass takes for each distinct expert that its rows call, in all layers together: what passes of
    equally many rows cost, of one token throughout and of many. 0 where the model has no experts, passes take long, or
    tokens do not differ in the experts that they call."""
    rows = min(_MANY, runner.cache.num_free_tokens - _memory_tokens(runner), _positions(runner))
    if runner.backend.config.experts is None or rows < 2:
        return 0.0
    taken: dict[bool, list[float]] = {False: [], True: []}
    called = dict[bool, float]()
    runner.cache.add(_SCRATCH, source=runner.trial_source)
    try:
        for _ in range(_REPEATS):
            for alike in (True, False):
                start = time.perf_counter()
                experts = _pass(runner, rows, alike)
                seconds = time.perf_counter() - start
                if experts is None or 2 * _REPEATS * seconds > _MOST_SECONDS:
                    return 0.0
                taken[alike].append(seconds)
                called[alike] = experts
    finally:
        runner.cache.remove(_SCRATCH)
    more = called[False] - called[True]
    return max(0.0, min(taken[False]) - min(taken[True])) / more if more >= _LEAST_DIFFERENCE else 0.0


def _memory_tokens(runner: ModelRunner) -> int:
    return runner.cache.memory_blocks_needed(runner.trial_source) * runner.cache.block_size


def _positions(runner: ModelRunner) -> int:
    """Most tokens of a sequence: where positions are learned, there are no others."""
    return runner.backend.config.max_positions


def _settle(runner: ModelRunner, rows: int) -> None:
    """Run passes until they take their usual time."""
    for _ in range(runner.unrecorded):
        _pass(runner, rows)


def _pass(runner: ModelRunner, rows: int, alike: bool = False) -> float | None:
    """Run one; the distinct experts that it called. ``alike``: of one token throughout, which call few of them."""
    wanted: Wanted = "best" if runner.backend.finds_best else "all"
    config, tokens = runner.backend.config, [0] * rows
    if config.experts is not None and not alike:
        tokens = np.random.default_rng(0).integers(config.vocab_size, size=rows).tolist()
    with runner.cache.reserve({_SCRATCH: rows}, final={_SCRATCH}):
        outputs = runner.forward([Span.chain(_SCRATCH, tokens, wanted)])
    return None if config.experts is None else outputs[0].pass_experts
