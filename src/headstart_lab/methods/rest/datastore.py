"""Token ids of many texts, in which a string is found wherever it stands: a suffix array over whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 3
"""Tokens of a word: as many as fit into 63 bits."""
_TOKEN_BITS = 21
_WORDS = 8
"""Words by which places are sorted; strings longer than these are not looked for."""

LONGEST = _WORD * _WORDS
"""Tokens of a string that can be found."""


class Datastore:
    """Places of texts, sorted by what stands from there on.

    Args:
        texts: token ids of each, below 2**21 - 1. No string is found across the end of one.

    Takes 32 bytes a token.
    """

    def __init__(self, texts: Iterable[Sequence[int] | NDArray[np.int32]]) -> None:
        ended = [np.append(np.asarray(text, dtype=np.int64), -1) for text in texts if len(text)]
        # Numbered from 1, so that the end of a text, 0, comes before every token.
        self._tokens = np.concatenate([*ended, np.full(LONGEST, -1, dtype=np.int64)]) + 1
        self.size = len(self._tokens) - LONGEST - len(ended)
        """Tokens in it."""
        places = len(self._tokens) - LONGEST
        self._words = np.zeros(places + LONGEST, dtype=np.int64)
        for offset in range(_WORD):
            self._words[:places] |= self._tokens[offset : offset + places] << _TOKEN_BITS * (_WORD - 1 - offset)
        self._order = self._sorted(places)
        self._first_words = self._words[self._order]

    def _sorted(self, places: int) -> NDArray[np.int64]:
        """Places by their words: ranks by so many words at first, by twice as many after every turn."""
        _, rank = np.unique(self._words, return_inverse=True)
        words = 1
        while words < _WORDS:
            behind = np.zeros(len(rank), dtype=np.int64)
            behind[: -_WORD * words] = rank[_WORD * words :]
            key = rank.astype(np.int64) * (len(rank) + 1) + behind
            _, rank = np.unique(key, return_inverse=True)
            words *= 2
        return np.argsort(rank[:places], kind="stable")

    def find(self, string: Sequence[int]) -> tuple[int, int]:
        """First and end rank of the places where a string of 1 to ``LONGEST`` tokens stands; equal if nowhere."""
        low, high = 0, len(self._order)
        words = self._first_words
        for first in range(0, len(string), _WORD):
            part = string[first : first + _WORD]
            least = 0
            for token in part:
                least = least << _TOKEN_BITS | token + 1
            free = _TOKEN_BITS * (_WORD - len(part))
            if first:
                words = self._words[self._order[low:high] + first]
            # All words that begin with the part.
            end = low + int(np.searchsorted(words, (least + 1) << free))
            low += int(np.searchsorted(words, least << free))
            high = end
            if low >= high:
                return low, low
        return low, high

    def longest_suffix(self, tokens: Sequence[int], most: int = LONGEST) -> tuple[int, int, int]:
        """Of how many tokens the longest suffix is that stands somewhere (0: none), and its ranks as ``find`` has
        them."""
        fits, found, fails = 0, (0, 0), min(most, LONGEST, len(tokens)) + 1
        # A suffix of what stands somewhere stands there, too.
        while fits + 1 < fails:
            length = (fits + fails) // 2
            low, high = self.find(tokens[len(tokens) - length :])
            if low < high:
                fits, found = length, (low, high)
            else:
                fails = length
        return fits, *found

    def followers(self, low: int, high: int, length: int, depth: int, most: int) -> list[list[int]]:
        """What follows strings of ``length`` tokens at these ranks: up to ``depth`` tokens each, of ``most`` places at
        most, evenly spread."""
        ranks = np.arange(low, high) if high - low <= most else np.linspace(low, high - 1, most).astype(np.int64)
        behind = self._order[ranks] + length
        rows = self._tokens[np.minimum(behind[:, None] + np.arange(depth), len(self._tokens) - 1)] - 1
        return [_until_end(row) for row in rows.tolist()]


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(-1)] if -1 in row else row
