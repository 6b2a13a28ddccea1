"""Times some passes of the target before the first request, on scratch cache blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headstart.drafting.planning import constants as c
from headstart.passes.runner import ModelRunner, Span, Wanted

_SCRATCH = -1
"""A sequence of this id takes the rows; requests count from 0."""


class TriedPass(NamedTuple):
    """A pass that was timed."""

    rows: int
    seconds: float


def try_passes(runner: ModelRunner, of: Sequence[int] | None = None) -> list[TriedPass]:
    """Passes of rising size, ``of`` so many rows (None: ``TRIED_ROWS``), as far as they fit in the cache, the positions
    and about a second.

    Nothing is committed, and the cache is left as it was.
    """
    cache = runner.cache
    room = cache.num_free_tokens - cache.memory_blocks_needed(runner.trial_source) * cache.block_size
    # Where positions are learned, there are no others.
    sizes = [rows for rows in of or c.TRIED_ROWS if rows <= min(room, runner.backend.config.max_positions)]
    if not sizes:
        return []
    began = time.perf_counter()
    tried: dict[int, float] = {}
    cache.add(_SCRATCH, source=runner.trial_source)
    try:
        # The first one touches weights and cache blocks that may not have been read yet: it tells nothing.
        _pass(runner, sizes[-1])
        # Each several times, as far as time allows: some may be disturbed.
        for rows in sizes * 2 + [rows for rows in sizes if rows <= c.TRIED_OFTEN] * 2:
            if time.perf_counter() - began > c.TRIED_SECONDS:
                break
            for _ in range(runner.unrecorded):  # until they take their usual time
                _pass(runner, rows)
            start = time.perf_counter()
            _pass(runner, rows)
            tried[rows] = min(time.perf_counter() - start, tried.get(rows, math.inf))
    finally:
        cache.remove(_SCRATCH)
    return [TriedPass(rows, seconds) for rows, seconds in tried.items()]


def _pass(runner: ModelRunner, rows: int) -> None:
    wanted: Wanted = "best" if runner.backend.finds_best else "all"
    config, tokens = runner.backend.config, [0] * rows
    if config.experts is not None:  # different tokens call different experts
        tokens = np.random.default_rng(0).integers(config.vocab_size, size=rows).tolist()
    with runner.cache.reserve({_SCRATCH: rows}, final={_SCRATCH}):
        runner.forward([Span.chain(_SCRATCH, tokens, wanted)])
