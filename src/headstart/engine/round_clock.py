"""Where the time of a round goes, in seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headstart.engine.outputs import SequenceStats


@dataclass
class RoundClock:
    """Where the time of a pass went; every sequence that rode in it is charged the whole."""

    began: float
    """When the engine began to see what is to be done."""
    start: float = 0.0
    draft_end: float = 0.0
    pass_end: float = 0.0
    signal_end: float = 0.0

    def __post_init__(self) -> None:
        self.start = time.perf_counter()

    def drafted(self) -> None:
        """The drafters have guessed."""
        self.draft_end = time.perf_counter()

    def passed(self) -> None:
        """The target has computed its rows."""
        self.pass_end = time.perf_counter()

    def signalled(self) -> None:
        """What drafters asked for was looked up in them."""
        self.signal_end = time.perf_counter()

    @property
    def ahead_seconds(self) -> float:
        return self.start - self.began

    @property
    def draft_seconds(self) -> float:
        return self.draft_end - self.start

    @property
    def pass_seconds(self) -> float:
        return self.pass_end - self.draft_end

    @property
    def signal_seconds(self) -> float:
        return self.signal_end - self.pass_end

    def charge_prefill(self, stats: SequenceStats) -> None:
        """Of a sequence whose prompt was read."""
        stats.target_passes += 1
        stats.prefill_seconds += self.pass_end - self.start

    def charge_round(self, stats: SequenceStats) -> None:
        """Of a sequence, or search, that decoded."""
        stats.target_passes += 1
        stats.rounds += 1
        stats.draft_seconds += self.draft_seconds
        stats.target_seconds += self.pass_seconds
