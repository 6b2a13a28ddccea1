"""What passes of the target and questions to drafters cost, learned while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from statistics import median

_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Rows at which the steps of the cost curve end; all passes on a step count as equally costly. The steps are few enough
to be learned in some dozens of rounds, and fine enough to show the tiles of 16 rows that kernels work in."""
_RECENT = 9
"""Timings that a median is taken of."""
_MEMORY = 256
"""A step is forgotten when no pass was on it for so many passes: the machine may have changed, or have been disturbed
when it was timed last."""
_HOPED_SHARE, _HOPED_SLOPE = 1 / 16, 1 / 2
"""What a row beyond the largest known pass is assumed to cost, as a share of that pass's average row, or of its last
rows if that is more. It is little on purpose: so a planner tries larger passes and learns what they cost."""
_FURTHER, _LEAST_FURTHER = 1 / 2, 4
"""How far the curve goes beyond the largest known pass: by this share of its rows, and by at least this many."""
_REDRAWN_EVERY = 8
"""Passes after which the curve is drawn anew."""
_MEAN_MEMORY, _SLOPE_MEMORY = 64, 256
"""Passes over which a step's means and the slope are averaged."""
_SLOPE_DOUBT = 1e7
"""Squared row-keys. Before contexts have varied this much, the slope counts for less than half of what it seems."""


class PassCosts:
    """Time of a pass, in two parts. One is for its rows: the median of the last few passes on their step. The other
    grows with its *row-keys*, the context's tokens summed over all rows.

    A step that was never timed is assumed to cost as much as the one below it, so a planner tries it now and then and
    learns what it costs. The slope of the second part is fitted to the differences between passes on the same step.
    """

    def __init__(self) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=_RECENT) for _ in _STEPS]
        """[step] seconds of its last passes, less what their row-keys took."""
        self._last_seen = [-1] * len(_STEPS)
        self._passes = 0
        self._slope = _Slope(len(_STEPS))
        self._curve: list[float] = []
        """[rows - 1] seconds of the first part; empty: to be drawn anew."""

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._passes > 0

    @property
    def per_key(self) -> float:
        """Seconds of a row-key."""
        return self._slope.value

    def begin_per_key(self, seconds: float) -> None:
        """A row-key was timed before any context was decoded in."""
        self._slope.begin(seconds)

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
        """Whether none of the last ``passes`` passes was on the step of ``rows``."""
        seen = self._last_seen[_step(rows)]
        return seen < 0 or self._passes - seen > passes

    def seconds(self, low: int, high: int, context: float = 0.0) -> list[float]:
        """Times of passes of ``low``, ..., ``high`` rows whose contexts have ``context`` tokens on average. Some pass
        must have been timed. The list ends early where passes would be much larger than any timed so far."""
        if not self._curve:
            self._curve = self._fit()
        bases, each = self._curve[low - 1 : high], self._slope.value * context
        return [base + rows * each for rows, base in enumerate(bases, start=low)] if each else bases

    def _fit(self) -> list[float]:
        points: list[tuple[int, float]] = []
        for step in range(len(_STEPS) - 1, -1, -1):
            if self._recent[step] and self._passes - self._last_seen[step] <= _MEMORY:
                seconds = median(self._recent[step])
                # More rows never cost less. Where they seem to, something disturbed the smaller passes.
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
    """How passes on the same step differ with their row-keys: least squares over the recent past."""

    def __init__(self, steps: int) -> None:
        self.value = self._first = 0.0
        self._means: list[tuple[float, float] | None] = [None] * steps
        self._joint = self._spread = 0.0

    def add(self, step: int, row_keys: float, seconds: float) -> None:
        mean = self._means[step]
        if mean is None:
            self._means[step] = row_keys, seconds
            return
        keys_off, seconds_off = row_keys - mean[0], seconds - mean[1]
        # A long pause must not look like a long context.
        seconds_off = min(max(seconds_off, -mean[1] / 2), mean[1] / 2)
        self._means[step] = mean[0] + keys_off / _MEAN_MEMORY, mean[1] + seconds_off / _MEAN_MEMORY
        fade = 1 - 1 / _SLOPE_MEMORY
        self._joint = fade * self._joint + keys_off * seconds_off
        self._spread = fade * self._spread + keys_off * keys_off
        self.value = max(0.0, (self._joint + _SLOPE_DOUBT * self._first) / (self._spread + _SLOPE_DOUBT))

    def begin(self, value: float) -> None:
        """Start from a value measured elsewhere."""
        self._first = self.value = value


class Recent:
    """The median of the last few timings of one thing."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        # ``statistics.median_low`` without its checks: this runs several times a round.
        self.value = sorted(self._values)[(len(self._values) - 1) // 2]

    def scale(self, factor: float) -> None:
        """Hold all timings for this many times what they were."""
        self._values = deque([value * factor for value in self._values], maxlen=_RECENT)
        self.value *= factor


class QuestionCosts:
    """Time of asking a drafter, by the number of sequences that it is asked about at once: a drafter that reads weights
    reads them once for all sequences."""

    def __init__(self) -> None:
        self._recent: dict[int, Recent] = {}
        """[sequences] seconds."""

    def add(self, sequences: int, seconds: float) -> None:
        """A question about ``sequences`` sequences (at least 1) was timed."""
        if sequences not in self._recent:
            self._recent[sequences] = Recent()
        self._recent[sequences].add(seconds)

    def add_probe(self, sequences: int, seconds: float) -> None:
        """A question after a rest was timed. If it took less than such ones before it, all timings so far are from
        slower times: a disturbance lengthens questions much more than a short draft shortens one, and a drafter that
        rests is asked too rarely to outnumber them. Where it was but a short draft, the next questions soon tell."""
        if sequences not in self._recent:
            self.add(sequences, seconds)
        elif seconds < (expected := self.seconds(sequences)):
            for recent in self._recent.values():
                recent.scale(seconds / expected)

    def seconds(self, sequences: int) -> float:
        """Of a question about this many; 0: none was timed. A number that was not timed is estimated from the next
        smaller one, or else from the smallest: half of its time is taken to grow with the sequences."""
        if sequences in self._recent:
            return self._recent[sequences].value
        if not self._recent:
            return 0.0
        known = max([n for n in self._recent if n < sequences], default=min(self._recent))
        return self._recent[known].value * (1 + sequences / known) / 2


def _step(rows: int) -> int:
    return bisect_left(_STEPS, min(rows, _STEPS[-1]))
