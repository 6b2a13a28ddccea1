"""What passes of the target and questions to drafters cost, learned while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from statistics import median, median_low

_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Passes of (step before, step] rows count as equally costly: few enough steps to be learned in some dozens of rounds,
close enough to see the kernels' own (tiles of 16 rows)."""
_RECENT = 9
_MEMORY = 1024
"""Passes after which a step not taken is forgotten: the machine may have changed."""
_HOPED_SHARE, _HOPED_SLOPE = 1 / 16, 1 / 2
"""What a row is believed to cost where larger passes are not known, of the average row and of the last ones known:
little, so that a planner that spends rows where they pay tries them and finds out."""
_FURTHER, _LEAST_FURTHER = 1 / 2, 4
"""A pass may exceed the largest one known by this share of its rows, and by at least this many rows."""
_REDRAWN_EVERY = 8
"""Passes after which the curve is drawn anew."""
_MEAN_MEMORY, _SLOPE_MEMORY = 64, 256
_SLOPE_DOUBT = 1e7
"""Squared row-keys: as much spread of contexts must be seen before the slope is believed by half."""


class PassCosts:
    """Time of a pass: a part for its rows, the median of the last few passes on each step, and a part for its
    *row-keys* (for each row the tokens of its context, summed), which grows with the context.

    A step never taken is believed to cost no more than the one below it, so that whoever spends rows where they pay
    tries it now and then and so knows. The slope of the second part is the one that explains best how passes on one
    and the same step differ.
    """

    def __init__(self) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=_RECENT) for _ in _STEPS]
        """[step] seconds of its last passes, without their row-keys."""
        self._last_seen = [-1] * len(_STEPS)
        self._passes = 0
        self._slope = _Slope(len(_STEPS))
        self._curve: list[float] = []
        """[rows - 1] seconds without row-keys; empty: to be drawn anew."""

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._passes > 0

    @property
    def per_key(self) -> float:
        """Seconds for each row-key."""
        return self._slope.value

    def add(self, rows: int, seconds: float, row_keys: float = 0.0) -> None:
        """A pass of ``rows`` rows (at least 1) was timed."""
        step = _step(rows)
        if self.stale(rows, _MEMORY):
            self._recent[step].clear()
            self._curve = []
        self._recent[step].append(max(seconds - self._slope.value * row_keys, 0.0))
        self._last_seen[step] = self._passes
        self._passes += 1
        self._slope.add(step, row_keys, seconds)
        if self._passes % _REDRAWN_EVERY == 0:
            self._curve = []

    def stale(self, rows: int, passes: int) -> bool:
        """Whether the last so many passes all had another number of rows (on another step)."""
        seen = self._last_seen[_step(rows)]
        return seen < 0 or self._passes - seen > passes

    def seconds(self, low: int, high: int, context: float = 0.0) -> list[float]:
        """[...] time of a pass of ``low``, ..., ``high`` rows whose contexts have ``context`` tokens on average; some
        pass was seen. Shorter than asked for where so many rows are too far from all that is known."""
        if not self._curve:
            self._curve = self._fit()
        bases, each = self._curve[low - 1 : high], self._slope.value * context
        return [base + rows * each for rows, base in enumerate(bases, start=low)] if each else bases

    def _fit(self) -> list[float]:
        points: list[tuple[int, float]] = []
        for step in range(len(_STEPS) - 1, -1, -1):
            if self._recent[step] and self._passes - self._last_seen[step] <= _MEMORY:
                seconds = median(self._recent[step])
                # More rows never cost less: what says otherwise is a disturbance of the smaller pass.
                points.append((_STEPS[step], min(seconds, points[-1][1]) if points else seconds))
        points.reverse()
        rows, seconds = points[0]
        curve, rise = [seconds] * rows, 0.0
        for (few, less), (many, more) in pairwise(points):
            first = _STEPS[_step(many) - 1]
            curve += [less] * (first - few) + [more] * (many - first)
            rise = (more - less) / (many - few)
        rows, seconds = points[-1]
        hoped = max(seconds * _HOPED_SHARE / rows, rise * _HOPED_SLOPE)
        further = max(int(_FURTHER * rows), _LEAST_FURTHER)
        curve += [seconds + hoped * extra for extra in range(1, further + 1)]
        return curve


class _Slope:
    """Least squares within steps, of the recent past."""

    def __init__(self, steps: int) -> None:
        self.value = 0.0
        self._means: list[tuple[float, float] | None] = [None] * steps
        self._joint = self._spread = 0.0

    def add(self, step: int, row_keys: float, seconds: float) -> None:
        mean = self._means[step]
        if mean is None:
            self._means[step] = row_keys, seconds
            return
        keys_off, seconds_off = row_keys - mean[0], seconds - mean[1]
        # One long pause must not pass for a long context.
        seconds_off = min(max(seconds_off, -mean[1] / 2), mean[1] / 2)
        self._means[step] = mean[0] + keys_off / _MEAN_MEMORY, mean[1] + seconds_off / _MEAN_MEMORY
        fade = 1 - 1 / _SLOPE_MEMORY
        self._joint = fade * self._joint + keys_off * seconds_off
        self._spread = fade * self._spread + keys_off * keys_off
        self.value = max(0.0, self._joint / (self._spread + _SLOPE_DOUBT))


class Recent:
    """The median of the last few values of something timed over and over."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = median_low(self._values)


class QuestionCosts:
    """Time of asking a drafter, by the number of sequences that it is asked about at once: a drafter that reads weights
    reads them once for all of them."""

    def __init__(self) -> None:
        self._recent: dict[int, Recent] = {}
        """[sequences] seconds."""

    def add(self, sequences: int, seconds: float) -> None:
        """A question about ``sequences`` sequences (at least 1) was timed."""
        self._recent.setdefault(sequences, Recent()).add(seconds)

    def seconds(self, sequences: int) -> float:
        """Of a question about this many: what the next smaller number took, or else the next larger, half of it in
        proportion; 0: none was timed."""
        if sequences in self._recent:
            return self._recent[sequences].value
        if not self._recent:
            return 0.0
        known = max([n for n in self._recent if n < sequences], default=min(self._recent))
        return self._recent[known].value * (1 + sequences / known) / 2


def _step(rows: int) -> int:
    return bisect_left(_STEPS, min(rows, _STEPS[-1]))
