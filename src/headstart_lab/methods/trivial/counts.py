"""How often each token followed a context."""

from __future__ import annotations

from collections.abc import Mapping


class NextCounts:
    """Counts of the tokens seen after one context; the best of them is known at once."""

    __slots__ = ("_best", "_counts")

    def __init__(self) -> None:
        # In order of the latest sighting, oldest first.
        self._counts: dict[int, int] = {}
        self._best: int | None = None

    def __len__(self) -> int:
        return len(self._counts)

    def copy(self) -> NextCounts:
        """Counts of their own, equal to these."""
        twin = NextCounts()
        twin._counts = self._counts.copy()
        twin._best = self._best
        return twin

    @property
    def counts(self) -> Mapping[int, int]:
        """token -> how often it is counted, always at least 1."""
        return self._counts

    def add(self, token: int) -> None:
        """Count one sighting, the latest so far."""
        count = self._counts.pop(token, 0) + 1
        self._counts[token] = count
        if (self._best is not None and count >= self._counts[self._best]) or count == len(self._counts) == 1:
            self._best = token

    def remove(self, token: int) -> None:
        """Forget the oldest sighting of a counted token."""
        count = self._counts[token] - 1
        if count:
            self._counts[token] = count
        else:
            del self._counts[token]
        if token == self._best:
            self._best = None

    def best(self) -> int:
        """The token counted most often, the one seen last among equals.

        Raises:
            ValueError: nothing is counted.
        """
        if self._best is None:
            self._best = max(reversed(self._counts), key=self._counts.__getitem__)
        return self._best
