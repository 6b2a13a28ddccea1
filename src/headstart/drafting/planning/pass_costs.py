"""What passes of the target and questions to drafters cost, learned while decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from statistics import median

from headstart.drafting.planning.expert_calls import ExpertCalls

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
_EXPERT_DOUBT = 2
"""The same of what an expert takes, in squares of the experts that a row calls."""


class PassCosts:
    """Time of a pass, in two parts. One is for its rows: the median of the last few passes on their step. The other
    grows with its *row-keys*, the context's tokens summed over all rows.

    A step that was never timed is assumed to cost as much as the one below it, so a planner tries it now and then and
    learns what it costs. The slope of the second part is fitted to the differences between passes on the same step.

    With ``calls``, of a model with experts, there is a third part, for the distinct experts that a pass calls. Its
    slope is fitted in the same way; steps that were never timed count the experts that their rows are expected to call.
    """

    def __init__(self, calls: ExpertCalls | None = None) -> None:
        self._recent: list[deque[tuple[float, float]]] = [deque(maxlen=_RECENT) for _ in _STEPS]
        """[step] of its last passes, seconds less what their row-keys took, and distinct experts."""
        self._last_seen = [-1] * len(_STEPS)
        self._passes = 0
        self._slope = _Slope(len(_STEPS), _SLOPE_DOUBT)
        self._calls = calls
        self._expert_slope = _Slope(len(_STEPS), 1.0 if calls is None else _EXPERT_DOUBT * calls.used**2)
        self._curve: list[float] = []
        """[rows - 1] seconds of the first part; empty: to be drawn anew."""

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._passes > 0

    def begin_per_key(self, seconds: float) -> None:
        """A row-key was timed before any context was decoded in."""
        self._slope.begin(seconds)

    @property
    def per_expert(self) -> float:
        """Seconds of a distinct expert that a pass calls, in all layers together; 0 without experts."""
        return self._expert_slope.value

    def begin_per_expert(self, seconds: float) -> None:
        """An expert was timed before anything was decoded."""
        self._expert_slope.begin(seconds)
        self._curve = []

    def add(self, rows: int, seconds: float, row_keys: float = 0.0, experts: float | None = None) -> None:
        """A pass of ``rows`` rows (at least 1) was timed, which called ``experts`` distinct experts in a layer of them;
        None: the model has none, or it is not known."""
        called = 0.0
        if self._calls is not None:
            if experts is None:
                called = self._calls.expected(rows)
            else:
                self._calls.add(rows, called := experts)
        step = _step(rows)
        if self.stale(rows, _MEMORY):
            self._recent[step].clear()
            self._curve = []
        self._recent[step].append((max(seconds - self._slope.value * row_keys, 0.0), called))
        self._last_seen[step] = self._passes
        self._passes += 1
        if self._calls is None:
            self._slope.add(step, row_keys, seconds)
        else:
            of_keys, of_experts = self._slope.value * row_keys, self._expert_slope.value * called
            self._slope.add(step, row_keys, seconds - of_experts)
            self._expert_slope.add(step, called, seconds - of_keys)
        if self._passes % _REDRAWN_EVERY == 0:
            self._curve = []

    def stale(self, rows: int, passes: int) -> bool:
        """Whether none of the last ``passes`` passes was on the step of ``rows``."""
        seen = self._last_seen[_step(rows)]
        return seen < 0 or self._passes - seen > passes

    def seconds(self, low: int, high: int, context: float = 0.0) -> list[float]:
        """Times of passes of ``low``, ..., ``high`` rows whose contexts have ``context`` tokens on average. Some pass
        must have been timed. The list ends early where passes would be much larger than any timed so far; the first of
        them is always there, for its rows are run whatever they cost."""
        if len(self._curve) < low:
            self._curve = self._fit(low)
        bases, each = self._curve[low - 1 : high], self._slope.value * context
        return [base + rows * each for rows, base in enumerate(bases, start=low)] if each else bases

    def _fit(self, least: int) -> list[float]:
        """[rows - 1] seconds, of passes of up to ``least`` rows or more."""
        points: list[tuple[int, float]] = []
        per_expert = self._known_per_expert()
        for step in range(len(_STEPS) - 1, -1, -1):
            if self._recent[step] and not self.stale(_STEPS[step], _MEMORY):
                seconds = median([taken - per_expert * called for taken, called in self._recent[step]])
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
        further = max(int(_FURTHER * rows), _LEAST_FURTHER, least - rows)
        curve += [seconds + hoped * extra for extra in range(1, further + 1)]
        if self._calls is not None and per_expert:
            expected = self._calls.curve(len(curve))
            curve = [base + per_expert * called for base, called in zip(curve, expected, strict=True)]
        return curve

    def _known_per_expert(self) -> float:
        """What an expert takes; no more than would leave nothing for the rest of a pass."""
        if self._calls is None:
            return 0.0
        timed = [each for recent in self._recent for each in recent]
        return min([self._expert_slope.value, *(taken / called for taken, called in timed if called)])


class _Slope:
    """How passes on the same step differ with something that is counted (their row-keys, say): least squares over the
    recent past. ``doubt``: the squared count up to which the slope counts for less than half of what it seems."""

    def __init__(self, steps: int, doubt: float) -> None:
        self.value = self._first = 0.0
        self._doubt = doubt
        self._means: list[tuple[float, float] | None] = [None] * steps
        self._joint = self._spread = 0.0

    def add(self, step: int, counted: float, seconds: float) -> None:
        mean = self._means[step]
        if mean is None:
            self._means[step] = counted, seconds
            return
        counted_off, seconds_off = counted - mean[0], seconds - mean[1]
        # A long pause must not look like a long context.
        seconds_off = min(max(seconds_off, -mean[1] / 2), mean[1] / 2)
        self._means[step] = mean[0] + counted_off / _MEAN_MEMORY, mean[1] + seconds_off / _MEAN_MEMORY
        fade = 1 - 1 / _SLOPE_MEMORY
        self._joint = fade * self._joint + counted_off * seconds_off
        self._spread = fade * self._spread + counted_off * counted_off
        self.value = max(0.0, (self._joint + self._doubt * self._first) / (self._spread + self._doubt))

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
