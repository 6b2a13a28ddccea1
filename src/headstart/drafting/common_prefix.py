"""How far two token lists agree."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(first: Sequence[int], second: Sequence[int], longest: int) -> int:
    """How many leading tokens two lists share, ``longest`` at most. Compares slices, not tokens one by one."""
    low, high = 0, min(len(first), len(second), longest)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
