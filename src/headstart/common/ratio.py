"""A factor that was measured several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_TRIMMED_FROM = 7
"""Turns from which on the lowest and the highest ratio are left out: one disturbance must not decide."""
_UNCERTAIN = 1.5
"""Highest over lowest ratio from which on there is no naming a factor."""


@dataclass(frozen=True)
class Ratio:
    """The median, and between which values it lay."""

    middle: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio | None:
        """None where there is nothing to judge."""
        if not ratios:
            return None
        ordered = sorted(ratios)
        kept = ordered[1:-1] if len(ordered) >= _TRIMMED_FROM else ordered
        return cls(median(ordered), kept[0], kept[-1], len(ordered))

    @property
    def uncertain(self) -> bool:
        return self.high > _UNCERTAIN * self.low

    def __str__(self) -> str:
        if self.turns == 1:
            return f"{self.middle:.2f}x, measured once"
        if self.uncertain:
            return (
                f"between {self.low:.2f}x and {self.high:.2f}x in {self.turns} turns (median {self.middle:.2f}x); too "
                "uncertain to name a factor"
            )
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f} in {self.turns} turns)"
