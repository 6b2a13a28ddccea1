"""How far a measurement is, in tokens, while it goes on: what is left of it can be foreseen before a part is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Workload:
    """Work in parts whose sizes are expected beforehand.

    Args:
        tell: called with units of work and tokens that are done since it was called last. A part amounts to what was
            expected of it, whatever it took in the end.
    """

    def __init__(self, tell: Callable[[int, int], None] = lambda units, tokens: None) -> None:
        self._tell = tell
        self._left = 0

    @contextmanager
    def part(self, units: int) -> Iterator[None]:
        """So much work is expected in here."""
        self._left = units
        try:
            yield
        finally:
            rest, self._left = self._left, 0
            self._tell(rest, 0)

    def done(self, tokens: int, units: int | None = None) -> None:
        """So many tokens were decoded; ``units``: what that amounts to, if not as many."""
        units = min(tokens if units is None else units, self._left)
        self._left -= units
        self._tell(units, tokens)
