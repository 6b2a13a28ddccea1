"""States of a pass: which rows follow which, where a state comes from and where it goes, and what of it is kept.

A row's state follows from that of the row before it on its path. Rows of equal depth, of all sequences, are computed
together, one depth after the other: the arithmetic of a row is the same in a long chunk, in a short one and in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.layers.recurrence import Step
from headstart.passes import PassBatch, path_lengths


@dataclass(frozen=True)
class _Level:
    """Rows of one depth."""

    rows: Tensor | slice
    """Of the pass."""
    before: Tensor | None
    """[row] place of the row before it in the level before; of the first level, the sequence. None: all, in order."""
    kept: Tensor | slice | None
    """Places of the rows whose states are kept; None: of none."""
    slots: Tensor
    """[kept] where to."""


class StateLayout:
    """Everything about the states of a pass that does not depend on the layer.

    Args:
        batch: of texts of which nothing is cached, where it names no states.
        blank: the slot of the state of a text of which nothing has been read.
        device: of the states.

    Raises:
        ValueError: the states that cached tokens have left are not named.
    """

    def __init__(self, batch: PassBatch, blank: int, device: torch.device) -> None:
        before, after = batch.states_before, batch.states_after
        if before is None or after is None:
            before, after = np.full(batch.num_sequences, -1), np.full(batch.num_rows, -1)
        if bool((batch.cached_lengths[before < 0] > 0).any()):
            raise ValueError("a pass over cached tokens must say where the states after them are")
        self._batch = batch
        self._after = after
        self._device = device
        self._before = self._index(np.where(before < 0, blank, before))
        counts = np.diff(batch.row_starts)
        self._sequence: NDArray[np.int64] = np.repeat(np.arange(batch.num_sequences), counts)
        """[row]"""
        self._depth = np.array(path_lengths(batch.parents.tolist()), dtype=np.int64) - 1
        kept = np.flatnonzero(after >= 0)
        self._kept_rows, self._slots = self._index(kept), self._index(after[kept])
        self._levels: list[_Level] | None = None
        self._views: dict[int, Tensor] = {}

    def look_back(self, rows: Tensor, store: Tensor) -> Tensor:
        """What rows see of themselves and of those before them, [row, length, channel]; what later ones will look back
        at is written to ``store``.

        Args:
            rows: [row, channel].
            store: [slot, length - 1, channel].
        """
        length = store.shape[1] + 1
        past = store.index_select(0, self._before).flatten(0, 1)
        seen = torch.cat((past, rows)).index_select(0, self._view(length)).view(len(rows), length, -1)
        store.index_copy_(0, self._slots, seen.index_select(0, self._kept_rows)[:, 1:])
        return seen

    def recur(self, step: Step, store: Tensor) -> Tensor:
        """What all rows give [row, ...], each after the one before it; states that are kept are written to ``store``
        [slot, ...]."""
        if self._levels is None:
            self._levels = self._make_levels()
        states = store.index_select(0, self._before)
        given: Tensor | None = None
        for level in self._levels:
            if level.before is not None:
                states = states.index_select(0, level.before)
            states, out = step(states, level.rows)
            if given is None:
                given = out.new_empty((self._batch.num_rows, *out.shape[1:]))
            given[level.rows] = out
            if level.kept is not None:
                store.index_copy_(0, level.slots, states[level.kept])
        assert given is not None
        return given

    def _view(self, length: int) -> Tensor:
        """int64 [row * length] what rows see, among the sequences' past [sequence * (length - 1)] and the rows."""
        if length not in self._views:
            past = length - 1
            first = self._batch.num_sequences * past
            parents = self._batch.parents.astype(np.int64)
            view = np.empty((self._batch.num_rows, length), dtype=np.int64)
            row = np.arange(self._batch.num_rows)
            for back in range(length):
                # Beyond the pass's own rows: as far back in the sequence's past, its last being the nearest.
                beyond = self._sequence * past + past - (back - self._depth)
                view[:, past - back] = np.where(row >= 0, row + first, beyond)
                row = np.where(row >= 0, parents[row], -1)
            self._views[length] = self._index(view.ravel())
        return self._views[length]

    def _make_levels(self) -> list[_Level]:
        depth, parents = self._depth, self._batch.parents
        order = np.argsort(depth, kind="stable")
        ends = np.cumsum(np.bincount(depth))
        place = np.empty_like(depth)
        levels, width = [], self._batch.num_sequences
        for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            rows = order[first:end]
            place[rows] = np.arange(len(rows))
            before = self._sequence[rows] if first == 0 else place[parents[rows]]
            is_same = len(rows) == width and bool((before == np.arange(width)).all())
            slots = self._after[rows]
            kept = np.flatnonzero(slots >= 0)
            levels.append(
                _Level(
                    self._places(rows),
                    None if is_same else self._index(before),
                    self._places(kept) if len(kept) else None,
                    self._index(slots[kept]),
                )
            )
            width = len(rows)
        return levels

    def _places(self, places: NDArray[np.int64]) -> Tensor | slice:
        """A slice where they are adjacent."""
        first, last = int(places[0]), int(places[-1])
        is_whole = last - first == len(places) - 1 and bool((np.diff(places) == 1).all())
        return slice(first, last + 1) if is_whole else self._index(places)

    def _index(self, values: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._device)


@dataclass(frozen=True)
class LayerStore:
    """What one layer keeps."""

    pages: Tensor
    """[slot, *cache_row] of each token; no slots: the layer does not attend."""
    states: Sequence[Tensor] = ()
    """[slot of a state, ...] each."""
