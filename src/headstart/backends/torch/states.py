"""States of a pass: where they come from and where they go, and what of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.levels import Level, Order, Places, index_of, order_of
from headstart.models.layers.recurrence import Scan, ScanStep, Step
from headstart.passes.batch import PassBatch, path_lengths


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
        self._orders: dict[bool, Order] = {}
        """By whether pieces are scanned."""
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

    def recur(self, step: Step, scan: Scan | None, store: Tensor) -> Tensor:
        """What all rows give [row, ...], each after the one before it; states that are kept are written to ``store``
        [slot, ...]. ``scan``: for pieces; None: all are computed row by row."""
        scans = scan is not None
        if scans not in self._orders:
            self._orders[scans] = order_of(self._batch, self._after, self._device, scans)
        order = self._orders[scans]
        scan_step: ScanStep | None = None
        portion = -1
        states = store.index_select(0, self._before)
        given: Tensor | None = None
        for level in order.levels:
            if level.before is not None:
                states = states.index_select(0, level.before)
            if scan is not None and level.pieces is not None and level.portion != portion:
                portion = level.portion
                scan_step = scan(order.portions[portion])
            states, found = _run_level(level, states, step, scan_step)
            for rows, out in found:
                if given is None:
                    given = out.new_empty((self._batch.num_rows, *out.shape[1:]))
                given[rows] = out
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

    def _index(self, values: NDArray[np.integer]) -> Tensor:
        return index_of(values, self._device)


def _run_level(
    level: Level, states: Tensor, step: Step, scan_step: ScanStep | None
) -> tuple[Tensor, list[tuple[Places, Tensor]]]:
    """The states after a level's rows and pieces, and what rows of the pass give."""
    after: list[Tensor] = []
    given: list[tuple[Places, Tensor]] = []
    if level.rows is not None:
        some, out = step(states[: level.num_rows], level.rows)
        after.append(some)
        given.append((level.rows, out))
    if level.pieces is not None:
        assert scan_step is not None
        some, out = scan_step(states[level.num_rows :], level.pieces)
        out = out.flatten(0, 1)
        after.append(some)
        given.append((level.piece_rows, out if level.piece_places is None else out[level.piece_places]))
    return after[0] if len(after) == 1 else torch.cat(after), given


@dataclass(frozen=True)
class LayerStore:
    """What one layer keeps."""

    pages: Tensor
    """[slot, *cache_row] of each token; no slots: the layer does not attend."""
    states: Sequence[Tensor] = ()
    """[slot of a state, ...] each."""
