"""Times some passes of the target before the first request, on scratch cache blocks."""

from __future__ import annotations

import time

from headstart.runner import ModelRunner, Span, Wanted

_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
"""Rows of the passes; the last is about what 16 sequences and the guesses of a default engine take."""
_MOST_SECONDS = 1.0
"""All together: where a pass takes long, fewer of them are run."""
_SCRATCH = -1
"""A sequence of this id takes the rows; requests count from 0."""


def try_passes(runner: ModelRunner) -> list[tuple[int, float]]:
    """Rows and seconds of passes of rising size, as many as fit in the cache and in about a second.

    Nothing is committed, and the cache is left as it was.
    """
    sizes = [rows for rows in _ROWS if rows <= runner.cache.num_free_tokens]
    if not sizes:
        return []
    began = time.perf_counter()
    tried: list[tuple[int, float]] = []
    runner.cache.add(_SCRATCH)
    try:
        # The first one touches weights and cache blocks that may not have been read yet: it tells nothing.
        _pass(runner, sizes[-1])
        for rows in sizes:
            if time.perf_counter() - began > _MOST_SECONDS:
                break
            start = time.perf_counter()
            _pass(runner, rows)
            tried.append((rows, time.perf_counter() - start))
    finally:
        runner.cache.remove(_SCRATCH)
    return tried


def _pass(runner: ModelRunner, rows: int) -> None:
    wanted: Wanted = "best" if runner.backend.finds_best else "all"
    with runner.cache.reserve({_SCRATCH: rows}):
        runner.forward([Span.chain(_SCRATCH, [0] * rows, wanted)])
