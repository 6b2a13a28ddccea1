"""What a pass of the target costs by its rows and their contexts, learned while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from statistics import median

_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Passes of (step before, step] rows count as equally costly: few enough steps to be learned in some dozens of rounds,
close enough to see the kernels' own (tiles of 16 rows)."""
_RECENT = 9
_MEMORY = 1024
"""Passes after which a step not taken is forgotten: the machine may have changed."""
_HOPED_SHARE = 1 / 16
"""Of the average row, what a further one is believed to cost where larger passes are not known: little, so that whoever
spends rows where they pay tries them and so knows."""
_REACH = 2
"""So many times the rows of the largest pass known may be tried."""
_REDRAWN_EVERY = 8
"""Passes after which the curve is drawn anew."""
_MEAN_MEMORY, _SLOPE_MEMORY = 64, 256
_SLOPE_DOUBT = 1e7
"""Squared row-keys: as much spread of contexts must be seen before the slope is believed by half."""


class PassCosts:
    """Time of a pass: a part for its rows, straight lines between the medians of the last few passes on each step, and
    a part for its *row-keys* (for each row the tokens of its context, summed), which grows with the context.

    The slope of the second is the one that explains best how passes on one and the same step differ.
    """

    def __init__(self) -> None:
        self._recent: list[deque[tuple[float, float]]] = [deque(maxlen=_RECENT) for _ in _STEPS]
        """[step] row-keys and seconds of its last passes."""
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
        """A pass of so many rows (at least 1) was timed."""
        step = _step(rows)
        if self.stale(rows, _MEMORY):
            self._recent[step].clear()
            self._curve = []
        self._recent[step].append((row_keys, seconds))
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
        each = self._slope.value * context
        return [base + rows * each for rows, base in enumerate(self._curve[low - 1 : high], start=low)]

    def _fit(self) -> list[float]:
        slope = self._slope.value
        points: list[tuple[int, float]] = []
        for step in range(len(_STEPS) - 1, -1, -1):
            if self._recent[step] and self._passes - self._last_seen[step] <= _MEMORY:
                seconds = median([max(seconds - slope * keys, 0.0) for keys, seconds in self._recent[step]])
                # More rows never cost less: what says otherwise is a disturbance of the smaller pass.
                points.append((_STEPS[step], min(seconds, points[-1][1]) if points else seconds))
        points.reverse()
        rows, seconds = points[0]
        curve = [seconds] * rows
        for (few, less), (many, more) in pairwise(points):
            rise = (more - less) / (many - few)
            curve += [less + rise * extra for extra in range(1, many - few + 1)]
        rows, seconds = points[-1]
        hoped = seconds * _HOPED_SHARE / rows
        curve += [seconds + hoped * extra for extra in range(1, (_REACH - 1) * rows + 1)]
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
        self.value = median(self._values)


def _step(rows: int) -> int:
    return bisect_left(_STEPS, min(rows, _STEPS[-1]))
