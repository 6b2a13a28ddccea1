"""How many distinct experts the rows of a pass call: as if chosen at random, corrected by what passes show."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Rows = TypeVar("_Rows", float, NDArray[np.float64])

_MEMORY = 64
"""Passes over which what they called is averaged."""
_DOUBT = 2
"""Passes of a size that weigh as much as what passes of all sizes show."""


def at_random(count: int, used: int, rows: _Rows) -> _Rows:
    """Distinct experts of ``count`` that rows are expected to call, each of which chooses ``used`` whatever the others
    choose, all experts alike likely: count (1 - (1 - used / count)^rows)."""
    others: _Rows = (1 - used / count) ** rows
    return count * (1 - others)


class ExpertCalls:
    """The curve of distinct experts over rows, learned while decoding.

    Rows of one text share experts. So of the experts that rows beyond the first would add at random, a pass calls a
    *part* (which may be more than 1). It is averaged over passes of a size (powers of two), and over all of them for
    sizes that were not seen.

    Args:
        count: experts of a layer.
        used: of them, those that each row goes through.
    """

    def __init__(self, count: int, used: int) -> None:
        self.count, self.used = count, used
        self._all = _Mean()
        self._sizes: dict[int, tuple[_Mean, _Mean]] = {}
        """[binary digits of the rows] mean rows, and mean part."""

    def add(self, rows: int, distinct: float) -> None:
        """A pass of ``rows`` rows called so many in a layer, on average over layers."""
        added = at_random(self.count, self.used, rows) - self.used
        if added <= 0:
            return
        part = (distinct - self.used) / added
        self._all.add(part)
        mean_rows, mean_part = self._sizes.setdefault(rows.bit_length(), (_Mean(), _Mean()))
        mean_rows.add(rows)
        mean_part.add(part)

    def expected(self, rows: int) -> float:
        """Distinct experts of a pass of so many rows."""
        return self.curve(rows)[-1]

    def curve(self, rows: int) -> list[float]:
        """[rows - 1] of passes of 1, ..., ``rows`` rows; never falling."""
        sizes = np.arange(1.0, rows + 1)
        part = np.ones(rows)
        if self._sizes:
            known = [self._sizes[digits] for digits in sorted(self._sizes)]
            parts = [(mean.value * mean.seen + self._all.value * _DOUBT) / (mean.seen + _DOUBT) for _, mean in known]
            part = np.interp(sizes, [mean.value for mean, _ in known], parts)
        distinct = self.used + part * (at_random(self.count, self.used, sizes) - self.used)
        bounded = np.clip(distinct, self.used, np.minimum(self.count, self.used * sizes))
        found: list[float] = np.maximum.accumulate(bounded).tolist()
        return found


class _Mean:
    """A mean over the recent past."""

    def __init__(self) -> None:
        self.value = 0.0
        self.seen = 0
        """Values that it is made of, at most as many as are remembered."""

    def add(self, value: float) -> None:
        self.seen = min(self.seen + 1, _MEMORY)
        self.value += (value - self.value) / self.seen
