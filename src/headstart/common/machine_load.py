"""What else the processors did while something was measured: why figures of one machine differ."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STAT = Path("/proc/stat")
_STEAL = 7
"""Place of the stolen time among a processor's counters (proc(5)); 3 and 4 are idle and waiting for a disk."""
_IDLE = (3, 4)
_TOLERANCE = 0.15
"""Processors that others may use before figures suffer: every system has something to do now and then."""


@dataclass(frozen=True)
class MachineLoad:
    """What happened on the processors that this process may use; all but ``seconds`` are means in processors."""

    seconds: float
    cores: int
    threads: int
    """That this process computes with."""
    others: float | None
    """Used by other programs; None: the system does not tell."""
    stolen: float | None
    """Kept back by the hypervisor, for other guests."""
    load_average: float | None
    """Threads that ran or wanted to, over the last minute."""

    @property
    def busy(self) -> bool:
        """Whether others took what the measurement could have used."""
        taken = (self.others or 0.0) + (self.stolen or 0.0)
        return taken > max(self.cores - self.threads, 0) + _TOLERANCE

    @property
    def sentence(self) -> str:
        """Who took how much, where anybody did; else empty."""
        if not self.busy:
            return ""
        taken = []
        if self.others is not None and self.others > _TOLERANCE / 2:
            taken.append(f"other programs used {self.others:.1f} of {self.cores} cores")
        if self.stolen is not None and self.stolen > _TOLERANCE / 2:
            taken.append(f"the hypervisor kept back {self.stolen:.1f} of {self.cores} cores")
        said = " and ".join(taken)
        average = "" if self.load_average is None else f" (load average {self.load_average:.1f})"
        return f"{said[0].upper()}{said[1:]} during the measurement{average}."

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "busy": self.busy}


class LoadWatch:
    """Watches from its making on.

    Args:
        threads: that the measurement computes with.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._began, self._own, self._counted = time.perf_counter(), _own_seconds(), _counted()

    def so_far(self) -> MachineLoad:
        """What happened since it was made."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        own = _own_seconds() - self._own
        others = stolen = None
        counted = _counted()
        if counted is not None and self._counted is not None:
            used, kept_back = (now - before for now, before in zip(counted, self._counted, strict=True))
            others, stolen = max(used - own, 0.0) / seconds, max(kept_back, 0.0) / seconds
        return MachineLoad(seconds, len(_processors()), self._threads, others, stolen, _load_average())


def _processors() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _own_seconds() -> float:
    """Processor time of this process, and of the processes that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _counted() -> tuple[float, float] | None:
    """Seconds that this process's processors were used by anybody, and that were stolen from them; None: unknown."""
    try:
        lines = [line.split() for line in _STAT.read_text().splitlines() if line.startswith("cpu")]
        ticks = os.sysconf("SC_CLK_TCK")
        mine = {f"cpu{number}" for number in _processors()}
        counters = [list(map(int, numbers[: _STEAL + 1])) for name, *numbers in lines if name in mine]
    except (OSError, ValueError):
        return None
    if not counters or any(len(each) <= _STEAL for each in counters):
        return None
    stolen = sum(each[_STEAL] for each in counters)
    used = sum(sum(each) - sum(each[place] for place in _IDLE) for each in counters) - stolen
    return used / ticks, stolen / ticks


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
