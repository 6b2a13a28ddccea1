"""How far a head has read a sequence: its rows, and the features of those that wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import SequenceView
from headstart.drafting.heads.head_pass import DraftCache, HeadGrower
from headstart.drafting.heads.text_vocabulary import TextTokens
from headstart.passes.batch import IntArray

Features = NDArray[np.float32]


class Reading:
    """How far the head has read one sequence.

    Where states are missing (a prefix that was found in the target's cache brings none) it resumes from what is kept of
    that prefix, or begins after it, and guesses from what it has read since. The features of the last known position
    stay even when it was read, so that every draft begins with a true row.
    """

    def __init__(self, cache: DraftCache, text_tokens: TextTokens | None = None) -> None:
        self.cache = cache
        self.text_tokens = text_tokens
        self.known = 0
        """Positions from the first row's on whose true states have come."""
        self._features = np.empty((0, 0), np.float32)
        """[row, taps * hidden] of ``_held`` positions up to the last known one, with room after them."""
        self._held = 0
        self.unasked = 0
        """Positions that have come since a draft was asked for."""

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self.cache.first

    @property
    def num_unread(self) -> int:
        """Known positions that are not in the cache."""
        return self.known - self.cache.rows

    @property
    def end(self) -> int:
        """The position after the last known one."""
        return self.first + self.known

    @property
    def features(self) -> Features:
        """[row, taps * hidden] of the last known positions, as many as are held."""
        return self._features[: self._held]

    def append(self, position: int, states: Features, rows: list[int]) -> None:
        """Know the positions from ``position`` on: these rows of the states [tap, row, hidden]."""
        if position != self.end:
            self.cache.begin(position)
            self.known, self._held = 0, 0
        taps, _, hidden = states.shape
        to = self._next(len(rows), taps * hidden).reshape(len(rows), taps, hidden)
        to[:] = states.take(rows, axis=1).swapaxes(0, 1)

    def record(self, end: int, features: Features) -> None:
        """Know the positions before ``end`` after a stretch without drafts, which may have gone further: by the
        features [row, taps * hidden] of those that came in it."""
        came = end - self.end
        self._next(came, features.shape[1])[:] = features[:came]

    def _next(self, count: int, size: int) -> Features:
        """Know so many further positions, whose features [row, size] are written here."""
        if not self.num_unread:
            self._held = 0
        first, self._held, self.known = self._held, self._held + count, self.known + count
        if self._held > len(self._features):
            room = np.empty((max(2 * first, self._held), size), np.float32)
            if first:
                room[:first] = self._features[:first]
            self._features = room
        return self._features[first : self._held]

    def go_on(self, end: int, grower: HeadGrower) -> None:
        """Know the positions before ``end`` after a stretch of rounds, which may have gone further."""
        known = end - self.first
        self._features, self._held = grower.features, len(grower.features) - (grower.known - known)
        self.known = known
        self.cache.rows = min(grower.read, known)

    def resume(self, caches: Sequence[DraftCache], position: int, features: Features) -> None:
        """Begin again with copies of these rows, one cache after the other.

        Args:
            position: after them, which is known and unread.
            features: [taps * hidden] there.
        """
        self.cache.begin(position)
        for cache in caches:
            self.cache.extend(cache, 0, cache.rows)
        self.known = self.cache.rows + 1
        self._features, self._held = features[None].copy(), 1

    def copy_of(self, other: Reading) -> None:
        """Have read what another one has, of a text that is the same so far."""
        self.cache.begin(other.first)
        self.cache.extend(other.cache, 0, other.cache.rows)
        self.known = other.known
        self._features, self._held = other.features.copy(), other._held

    def unread(self, sequence: SequenceView, count: int | None = None) -> tuple[IntArray, Features]:
        """The next rows for the head, all by default: the token after each position, and its features."""
        first = self.first + self.cache.rows
        count = self.num_unread if count is None else count
        place = self._held - self.num_unread
        return np.array(sequence.tokens[first + 1 : first + 1 + count], np.int32), self._features[place : place + count]

    def rewind(self) -> None:
        """Have at least one row unread."""
        if not self.num_unread:
            self.cache.truncate(self.known - 1)

    def forget_rows(self, window: int) -> None:
        """Free rows that more than ``window`` others follow."""
        self.known -= self.cache.drop(self.cache.rows - window)

    def skip(self, left: int) -> None:
        """Begin anew with the last known positions, so many of them."""
        if self.num_unread > left:
            self.cache.begin(self.end - left)
            self.known = left
            self.forget_read()

    def forget_read(self) -> None:
        """Free the features of what was read."""
        self._features = self._features[self._held - self.num_unread : self._held].copy()
        self._held = self.num_unread
