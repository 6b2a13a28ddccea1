"""How busy other programs kept the machine while something was timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_WORKING = (0, 1, 2, 5, 6, 7)
"""Columns of its first line that are time of work: user, nice, system, both kinds of interrupt, and stolen time."""


class OtherLoad:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._began = _readings()

    def share(self) -> float | None:
        """Of the time of all cores, how much went to other programs since, in [0, 1]; None: the system does not say."""
        if self._began is None or (now := _readings()) is None:
            return None
        passed, worked, own = (after - before for before, after in zip(self._began, now, strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, worked - own) / (passed * cores)) if passed > 0 else None


def _readings() -> tuple[float, float, float] | None:
    """Seconds: the clock, the work of all cores, and this process's share of it."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        worked = sum(int(fields[column]) for column in _WORKING) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.perf_counter(), worked, time.process_time()
