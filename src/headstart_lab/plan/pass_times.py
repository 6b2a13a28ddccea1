"""Times passes of a target: by sequences, by rows, and as rounds that are run at once have them."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean, median

import numpy as np

from headstart.engine.stretch import sampling_of
from headstart.passes.draft_tree import DraftBudget
from headstart.passes.rounds import StretchDrafting, StretchLimits
from headstart.passes.runner import Span, Wanted
from headstart.sampling.params import SamplingParams
from headstart_lab.theory.formulas import FloatArray
from headstart_lab.workbench import Workbench

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
"""Few ones one by one: kernels take rows in pairs or fours, so that an odd one costs more than between its neighbours.
"""
_ROUNDS = 3
"""Rounds of a stretch that is timed; the first follows upon Python, as the first of every stretch does."""
_TOKEN = 1
_MODEL_ID = -1


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a target pass, typical ones of passes that were timed in turn."""

    context: int
    """Tokens that each sequence had in the cache, on average."""
    seconds: dict[int, dict[int, float]]
    """batch -> rows of each sequence -> seconds, of passes that Python asks for one by one."""
    at_once: dict[int, float] = field(default_factory=dict)
    """batch -> seconds of a pass of one row each, among rounds that are run at once; for backends that do."""
    experts: dict[int, dict[int, float]] = field(default_factory=dict)
    """batch -> rows of each sequence -> distinct experts that a pass called, on average over layers; of targets with
    experts."""

    def of(self, batch: int, rows: FloatArray, at_once: bool = False) -> FloatArray:
        """[...] seconds for these numbers of rows of each sequence, interpolated linearly between measured ones.

        In rounds that are run ``at_once`` every pass lacks what Python adds to a pass of one row.
        """
        curve = self.seconds[batch]
        spared = curve[1] - self.at_once.get(batch, curve[1]) if at_once else 0.0
        return np.asarray(np.interp(rows, list(curve), list(curve.values()))) - spared


class PassTimer:
    """Times passes over sequences in the cache, of each number of ``ROWS`` for each until ``most_rows`` are covered.

    Rows hold one token throughout, or consecutive tokens of a ``text``: what is timed of a target with experts depends
    on what the rows say.

    If requests with these ``params`` need only the best token of a row, the passes are asked only for that; if their
    rounds can be run at once, some are.
    """

    def __init__(
        self, bench: Workbench, params: SamplingParams, most_rows: int = ROWS[-1], text: Sequence[int] = ()
    ) -> None:
        self._runner = runner = bench.runner
        asked = bench.sequence([_TOKEN], params)
        transforms = asked.transforms
        self._wanted: Wanted = "best" if transforms.only_best and runner.backend.finds_best else "all"
        self._at_once = runner.runs_stretches and (transforms.only_best or transforms.only_drawn)
        self._limits = StretchLimits(
            rounds=_ROUNDS,
            seconds=math.inf,
            tokens=_ROUNDS + 1,
            room=_ROUNDS + 1,
            end_tokens=frozenset(),
            budget=DraftBudget(0, 0),
            sampling=sampling_of(asked),
        )
        self._rows = ROWS[: bisect_left(ROWS, most_rows) + 1]
        self._max_context = bench.limits.max_context
        self._contexts: list[float] = []
        self._taken: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._called: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._rounds: dict[int, list[float]] = defaultdict(list)
        self._text = cycle(text or [_TOKEN])

    def tokens(self, count: int) -> list[int]:
        """The next ones that rows hold."""
        return list(islice(self._text, count))

    def time(self, ids: Sequence[int]) -> None:
        """Once each, over these sequences together, unless their contexts are too full; what they hold stays as it
        is."""
        runner, batch, lengths = self._runner, len(ids), [self._runner.cache.length(sequence_id) for sequence_id in ids]
        if max(lengths) + self._rows[-1] > self._max_context:
            return
        self._contexts.append(fmean(lengths))
        for rows in self._rows:
            if batch * rows > max(batch, ROWS[-1]):
                break
            spans = [Span.chain(sequence_id, self.tokens(rows), self._wanted) for sequence_id in ids]
            with runner.cache.reserve(dict.fromkeys(ids, rows), final=ids):
                start = time.perf_counter()
                outputs = runner.forward(spans)
                self._taken[batch][rows].append(time.perf_counter() - start)
            if outputs[0].pass_experts is not None:
                self._called[batch][rows].append(outputs[0].pass_experts)
        if self._at_once:
            all_rows, states = (dict.fromkeys(ids, each) for each in (self._limits.rows, self._limits.states))
            with runner.cache.reserve(all_rows, states=states):
                done = runner.run_stretch(ids, [_TOKEN] * batch, [self._limits] * batch, StretchDrafting())
                self._rounds[batch] += [each.pass_seconds for each in done]

    def times(self, typical: Callable[[list[float]], float]) -> PassTimes | None:
        """What is ``typical`` of the seconds of each pass, out of several; None: nothing was timed."""
        if not self._contexts:
            return None
        return PassTimes(
            round(fmean(self._contexts)),
            {
                batch: {rows: typical(seconds) for rows, seconds in curve.items()}
                for batch, curve in self._taken.items()
            },
            # Draws that cannot be told in short leave no rounds.
            {batch: typical(seconds) for batch, seconds in self._rounds.items() if seconds},
            {batch: {rows: fmean(called) for rows, called in curve.items()} for batch, curve in self._called.items()},
        )


def measure_passes(
    bench: Workbench,
    context: int,
    batches: Sequence[int],
    repeats: int,
    params: SamplingParams,
    text: Sequence[int] = (),
    on_pass: Callable[[], None] = lambda: None,
) -> PassTimes:
    """Time passes for each batch over contexts of equal length, which leave room for the most of ``ROWS``; in turn, so
    that a disturbance hits all alike. ``on_pass``: called after each of ``repeats`` times as many as ``batches``."""
    runner, timer = bench.runner, PassTimer(bench, params, text=text)
    ids = [_MODEL_ID - place for place in range(max(batches))]
    try:
        for sequence_id in ids:
            runner.cache.add(sequence_id, source=runner.trial_source)
            with runner.cache.reserve({sequence_id: context}, final=ids):
                runner.forward([Span.chain(sequence_id, timer.tokens(context), "none")])
                runner.cache.commit(sequence_id, range(context))
        for _ in range(repeats):
            for batch in batches:
                timer.time(ids[:batch])
                on_pass()
    finally:
        for sequence_id in ids:
            if sequence_id in runner.cache:
                runner.cache.remove(sequence_id)
    times = timer.times(median)
    assert times is not None
    return times
