"""What an engine is at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_NAMED = 8
"""Requests that are named."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of an engine's work that cannot be interrupted: nobody else is served meanwhile."""

    what: str
    """As a noun: "the pass"."""
    request_ids: Sequence[int]
    """For whom; beams count as their search."""
    since: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self.since

    def sentence(self) -> str:
        """Who holds the engine, and how long."""
        named = ", ".join(map(str, self.request_ids[:_NAMED]))
        more = len(self.request_ids) - _NAMED
        who = f"request{'s' * (len(self.request_ids) > 1)} {named}{f' and {more} more' if more > 0 else ''}"
        return f"{self.what} of {who} has held the engine for {self.seconds:.0f} s; nobody else is served meanwhile."
