"""What a pass of the target costs by its number of rows, learned while decoding."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from headstart.analysis.theory import FloatArray

_STEPS = np.array([1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024])
"""Passes of (step before, step] rows count as equally costly: the curve is a staircase, close enough to the kernels'
own steps (tiles of 16 rows) and few enough to be learned in some dozens of rounds."""
_RECENT = 9
_MEMORY = 1024
"""Passes after which a step not taken is forgotten: the machine or the context may have changed."""


class PassCosts:
    """Time of a pass by its rows: the median of the last few passes on each step.

    A step never taken is believed to cost no more than the one below it, so that whoever spends rows where they pay
    tries it now and then and so knows.
    """

    def __init__(self) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=_RECENT) for _ in _STEPS]
        self._medians = np.zeros(len(_STEPS))
        self._last_seen = [-1] * len(_STEPS)
        self._passes = 0
        self._curve: FloatArray | None = None

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._passes > 0

    def add(self, rows: int, seconds: float) -> None:
        """A pass of so many rows (at least 1) was timed."""
        step = _step(rows)
        if self.stale(rows, _MEMORY):
            self._recent[step].clear()
        self._recent[step].append(seconds)
        self._medians[step] = median(self._recent[step])
        self._last_seen[step] = self._passes
        self._passes += 1
        self._curve = None

    def stale(self, rows: int, passes: int) -> bool:
        """Whether the last so many passes all had another number of rows (on another step)."""
        seen = self._last_seen[_step(rows)]
        return seen < 0 or self._passes - seen > passes

    def seconds(self, low: int, high: int) -> FloatArray:
        """[high - low + 1] time of a pass of ``low``, ..., ``high`` rows; some pass was seen."""
        if self._curve is None:
            self._curve = self._fit()
        return np.asarray(self._curve[np.searchsorted(_STEPS, np.minimum(np.arange(low, high + 1), _STEPS[-1]))])

    def _fit(self) -> FloatArray:
        taken = [step for step, seen in enumerate(self._last_seen) if seen >= 0 and self._passes - seen <= _MEMORY]
        # More rows never cost less: what says otherwise is a disturbance of the smaller pass.
        medians = np.minimum.accumulate(self._medians[taken][::-1])[::-1]
        below = np.searchsorted(taken, np.arange(len(_STEPS)), side="right") - 1
        return np.asarray(medians[np.maximum(below, 0)])


class Recent:
    """The median of the last few values of something timed over and over."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = median(self._values)


def _step(rows: int) -> int:
    return int(np.searchsorted(_STEPS, min(rows, int(_STEPS[-1]))))
