"""What passes of the target cost, learned while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from itertools import pairwise

from headstart.drafting.planning import constants as c


class PassCosts:
    """Time of a pass, in two parts. One is for its rows: the median of the last few passes on their step. The other
    grows with its *row-keys*, the context's tokens summed over all rows.

    A step that was never timed is assumed to lie between its neighbours. The slope of the second part is fitted to the
    differences between passes on the same step.
    """

    def __init__(self) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=c.RECENT) for _ in c.STEPS]
        """[step] seconds of its last passes, less what their row-keys took."""
        self._last_seen = [-1] * len(c.STEPS)
        self._passes = 0
        self._slope = _Slope()
        self._curve: list[float] = []
        """[rows - 1] seconds of the first part; empty: to be drawn anew."""

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._passes > 0

    def add(self, rows: int, seconds: float, row_keys: float = 0.0) -> None:
        """A pass of ``rows`` rows (at least 1) was timed."""
        step = _step(rows)
        if self._is_forgotten(step):
            self._recent[step].clear()
            self._curve = []
        self._recent[step].append(max(seconds - self._slope.value * row_keys, 0.0))
        self._last_seen[step] = self._passes
        self._passes += 1
        self._slope.add(step, row_keys, seconds)
        if self._passes % c.REDRAWN_EVERY == 0:
            self._curve = []

    def seconds(self, low: int, high: int, context: float = 0.0) -> list[float]:
        """Times of passes of ``low``, ..., ``high`` rows whose contexts have ``context`` tokens on average. Some pass
        must have been timed. The list ends early where passes would be much larger than any timed so far; the first of
        them is always there, for its rows are run whatever they cost. Of those behind it the first that is not known
        well enough costs as much as the one before it, so that it is tried again."""
        if len(self._curve) < low:
            self._curve = self._fit(low)
        bases, each = self._curve[low - 1 : high], self._slope.value * context
        for guesses in range(1, min(len(bases), 1 + c.LEVELS_AHEAD)):
            if self._is_due(_step(low + guesses), guesses):
                bases[guesses] = bases[guesses - 1]
                break
        return [base + rows * each for rows, base in enumerate(bases, start=low)] if each else bases

    def _is_due(self, step: int, guesses: int) -> bool:
        seldom = guesses == 1 or len(self._recent[step]) < c.TRUSTED
        return seldom and self._passes - self._last_seen[step] > c.RENEWED

    def _is_forgotten(self, step: int) -> bool:
        seen = self._last_seen[step]
        return seen < 0 or self._passes - seen > c.COST_MEMORY

    def _fit(self, least: int) -> list[float]:
        """[rows - 1] seconds, of passes of up to ``least`` rows or more."""
        points: list[tuple[int, float]] = []
        for step in range(len(c.STEPS) - 1, -1, -1):
            if self._recent[step] and not self._is_forgotten(step):
                seconds = median(self._recent[step])
                # More rows never cost less. Where they seem to, something disturbed the smaller passes.
                points.append((c.STEPS[step], min(seconds, points[-1][1]) if points else seconds))
        points.reverse()
        rows, seconds = points[0]
        curve, rise = [seconds] * rows, 0.0
        for (few, less), (many, more) in pairwise(points):
            rise = (more - less) / (many - few)
            # Within a step passes cost the same; steps between those that were timed are interpolated.
            for count in range(few + 1, many + 1):
                curve.append(less + rise * (c.STEPS[_step(count)] - few))
        rows, seconds = points[-1]
        hoped = max(seconds * c.HOPED_SHARE / rows, rise * c.HOPED_SLOPE)
        further = max(int(c.FURTHER * rows), c.LEAST_FURTHER, least - rows)
        return curve + [seconds + hoped * extra for extra in range(1, further + 1)]


class _Slope:
    """How passes on the same step differ with their row-keys: least squares over the recent past."""

    def __init__(self) -> None:
        self.value = 0.0
        self._means: list[tuple[float, float] | None] = [None] * len(c.STEPS)
        self._joint = self._spread = 0.0

    def add(self, step: int, row_keys: float, seconds: float) -> None:
        mean = self._means[step]
        if mean is None:
            self._means[step] = row_keys, seconds
            return
        keys_off, seconds_off = row_keys - mean[0], seconds - mean[1]
        # A long pause must not look like a long context.
        seconds_off = min(max(seconds_off, -mean[1] / 2), mean[1] / 2)
        self._means[step] = mean[0] + keys_off / c.MEAN_MEMORY, mean[1] + seconds_off / c.MEAN_MEMORY
        fade = 1 - 1 / c.SLOPE_MEMORY
        self._joint = fade * self._joint + keys_off * seconds_off
        self._spread = fade * self._spread + keys_off * keys_off
        self.value = max(0.0, self._joint / (self._spread + c.SLOPE_DOUBT))


class Recent:
    """The median of the last few timings of one thing."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=c.RECENT)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = median(self._values)


def median(values: Collection[float]) -> float:
    """``statistics.median_low`` without its checks: this runs several times a round."""
    return sorted(values)[(len(values) - 1) // 2]


def _step(rows: int) -> int:
    return bisect_left(c.STEPS, min(rows, c.STEPS[-1]))
