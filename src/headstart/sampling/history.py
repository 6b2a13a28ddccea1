"""The tokens that a sequence has behind it, counted: what penalties, bans and minimal lengths read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.noise import IdArray

Counts = NDArray[np.float32]


class TokenHistory:
    """The tokens of one sequence, counted as they are committed: distinct ids in order of appearance.

    ``output`` holds the committed output tokens.

    Args:
        prompt, output: as committed so far.
        source: what an encoder reads; None: there is none, and the prompt stands for it.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int] = (), source: Sequence[int] | None = None) -> None:
        self.output: list[int] = []
        self._prompt = prompt
        self._source = prompt if source is None else source
        self._said: _Runs | None = None
        self._read: _Runs | None = None
        distinct = dict.fromkeys(prompt)
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids: IdArray = np.fromiter(distinct, dtype=np.int64, count=len(distinct))
        self._counts: Counts = np.zeros(len(distinct), dtype=np.float32)
        for token in output:
            self.append(token)

    def append(self, token: int) -> None:
        """Count one committed output token."""
        self.output.append(token)
        if self._said is not None:
            self._said.append(token)
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            room = max(64, slot)
            self._ids = np.concatenate((self._ids, np.zeros(room, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(room, dtype=np.float32)))
        self._ids[slot] = token
        self._counts[slot] += 1

    def along(self, path: Sequence[int] = ()) -> PathHistory:
        """The history at a tree node: ``path`` holds the tokens after the root down to the node, its own included."""
        return PathHistory(self, path)

    def repeats(self, size: int, path: Sequence[int]) -> list[int]:
        """Tokens that would complete a run of ``size`` tokens that prompt, output and ``path`` hold already."""
        if self._said is None or self._said.size != size:
            self._said = _Runs(size, (*self._prompt, *self.output))
        return self._said.after(path)

    def repeats_read(self, size: int, path: Sequence[int]) -> list[int]:
        """Tokens that would complete a run of ``size`` tokens that the encoder reads."""
        if self._read is None or self._read.size != size:
            self._read = _Runs(size, self._source)
        begun = size - 1 - len(path)
        older = [*self._prompt[-begun:], *self.output[-begun:]][-begun:] if begun > 0 else []
        return self._read.following((*older, *path)[len(older) + len(path) + 1 - size :])

    def counts(self, path: Sequence[int] = ()) -> tuple[IdArray, Counts]:
        """Distinct tokens of prompt, output and ``path``, and how often each stands in output and path.

        int64 [distinct] and float32 [distinct]; views of the history itself where ``path`` is empty.
        """
        known = len(self._slots)
        if not path:
            return self._ids[:known], self._counts[:known]
        unseen = (token for token in dict.fromkeys(path) if token not in self._slots)
        new = {token: slot for slot, token in enumerate(unseen, known)}
        ids = np.concatenate((self._ids[:known], np.fromiter(new, dtype=np.int64, count=len(new))))
        counts = np.concatenate((self._counts[:known], np.zeros(len(new), dtype=np.float32)))
        for token in path:
            counts[new[token] if token in new else self._slots[token]] += 1
        return ids, counts


class PathHistory:
    """The history of one tree node: the sequence's, and the path to the node laid over it. Counted when asked."""

    __slots__ = ("_base", "_path")

    def __init__(self, base: TokenHistory, path: Sequence[int]) -> None:
        self._base = base
        self._path = path

    @property
    def output_length(self) -> int:
        """Output tokens up to the node, committed ones included."""
        return len(self._base.output) + len(self._path)

    def tail(self, length: int) -> Sequence[int]:
        """The last ``length`` output tokens up to the node, fewer where there are no more; the prompt's never."""
        older = length - len(self._path)
        return [*self._base.output[-older:], *self._path] if older > 0 else self._path[-length:]

    def counts(self) -> tuple[IdArray, Counts]:
        """As ``TokenHistory.counts``."""
        return self._base.counts(self._path)

    def repeats(self, size: int) -> list[int]:
        """As ``TokenHistory.repeats``."""
        return self._base.repeats(size, self._path)

    def repeats_read(self, size: int) -> list[int]:
        """As ``TokenHistory.repeats_read``."""
        return self._base.repeats_read(size, self._path)


class _Runs:
    """Runs of ``size`` tokens in a growing list of them: what has followed on the first of each."""

    def __init__(self, size: int, tokens: Iterable[int]) -> None:
        self.size = size
        self._last: list[int] = []
        """The tokens that the next run begins with, fewer at first."""
        self._following: dict[tuple[int, ...], list[int]] = {}
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        if len(self._last) == self.size - 1:
            self._following.setdefault(tuple(self._last), []).append(token)
        self._last.append(token)
        if len(self._last) == self.size:
            del self._last[0]

    def following(self, begun: tuple[int, ...]) -> list[int]:
        """What has followed on ``begun``; nothing on fewer tokens than a run begins with."""
        return self._following.get(begun, [])

    def after(self, path: Sequence[int]) -> list[int]:
        """What has followed on the last tokens of list and ``path``, in both together."""
        line, width = (*self._last, *path), self.size - 1
        begun = line[len(line) - width :] if len(line) >= width else line
        inside = [
            line[place + width]
            for place in range(len(line) - width)
            if line[place : place + width] == begun and place + width >= len(self._last)
        ]
        return [*self.following(begun), *inside]
