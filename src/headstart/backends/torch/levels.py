"""The order in which rows of a pass pass on states: levels of single rows and of pieces.

A row's state follows from that of the row before it on its path. Rows of equal depth, of all sequences, are computed
together, one depth after the other. So are pieces: rows of a chain that end with a block's last place in the text, or
where a state is kept or more than one row follows. So a text's rows are computed alike wherever a pass begins or ends
with a block, and whoever else is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.layers.recurrence import PIECE, Pieces
from headstart.passes.batch import PassBatch, path_lengths

SHORTEST_PIECE = 8
"""Rows; fewer are computed one by one, which takes less time on a processor."""
PORTION = 64
"""Pieces that are prepared together, or as many as a level has: what a scan keeps of them takes room."""

Places = Tensor | slice
"""A slice where they are adjacent."""


@dataclass(frozen=True)
class Level:
    """Rows and pieces of one depth. States stand in the order of rows, then pieces."""

    before: Tensor | None
    """[state] place of the one before it in the level before; of the first level, the sequence. None: all, in order."""
    rows: Places | None
    """Single ones, of the pass; None: there are none."""
    num_rows: int
    pieces: slice | None
    """Of its portion; None: there are none."""
    portion: int
    """Of ``Order.portions``."""
    piece_rows: Places
    """Rows of the pass that its pieces hold."""
    piece_places: Tensor | None
    """Where these lie in the pieces, end to end; None: there is nothing else in them."""
    kept: Places | None
    """Places of the states that are kept; None: none is."""
    slots: Tensor
    """[kept] where to."""


@dataclass(frozen=True)
class Order:
    """All of a pass."""

    levels: list[Level]
    portions: list[Pieces]
    """Pieces in the order of levels."""


def order_of(batch: PassBatch, after: NDArray[np.integer], device: torch.device, scans: bool) -> Order:
    """How the rows of a pass are computed.

    Args:
        after: [row] slot that the state after it goes to; below 0: nowhere.
        device: of the states.
        scans: in pieces where that can be; False: row by row.
    """
    lengths = _unit_lengths(batch, after) if scans else np.ones(batch.num_rows, dtype=np.int64)
    return _Units(batch, after, lengths, device).order()


def _unit_lengths(batch: PassBatch, after: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows of each unit, in the order of rows."""
    parents, count = batch.parents, batch.num_rows
    followers = np.bincount(parents[parents >= 0], minlength=count)
    goes_on = (followers == 1) & (after < 0) & ((batch.positions + 1) % PIECE != 0)
    begins = np.ones(count, dtype=bool)
    begins[1:] = (parents[1:] != np.arange(count - 1)) | ~goes_on[:-1]
    lengths = np.diff(np.append(np.flatnonzero(begins), count))
    times = np.where(lengths < SHORTEST_PIECE, lengths, 1)
    return np.repeat(np.where(lengths < SHORTEST_PIECE, 1, lengths), times)


class _Units:
    """What takes one state and gives one: single rows, and pieces."""

    def __init__(
        self, batch: PassBatch, after: NDArray[np.integer], lengths: NDArray[np.int64], device: torch.device
    ) -> None:
        self._batch, self._device = batch, device
        self._lengths = lengths
        self._first = np.cumsum(lengths) - lengths
        self._slots = after[self._first + lengths - 1]
        """[unit] where the state after it goes."""
        parents = batch.parents[self._first]
        unit_of_row = np.repeat(np.arange(len(lengths)), lengths)
        self._parents = np.where(parents < 0, -1, unit_of_row[parents])
        self._sequences = np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_starts))[self._first]

    def order(self) -> Order:
        depth = np.array(path_lengths(self._parents.tolist()), dtype=np.int64) - 1
        is_piece = self._lengths > 1
        order = np.lexsort((np.arange(len(depth)), is_piece, depth))
        ends = np.cumsum(np.bincount(depth))
        place = np.empty_like(depth)
        levels, width = [], self._batch.num_sequences
        portions: list[list[NDArray[np.int64]]] = [[]]
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            units = order[start:end]
            place[units] = np.arange(len(units))
            before = self._sequences[units] if start == 0 else place[self._parents[units]]
            is_same = len(units) == width and bool((before == np.arange(width)).all())
            singles, wholes = units[~is_piece[units]], units[is_piece[units]]
            if sum(map(len, portions[-1])) >= PORTION:
                portions.append([])
            piece = sum(map(len, portions[-1]))
            portions[-1].append(wholes)
            slots = self._slots[units]
            kept = np.flatnonzero(slots >= 0)
            rows = self._rows(wholes)
            behind = self._behind(wholes)
            levels.append(
                Level(
                    before=None if is_same else self._index(before),
                    rows=self._places(self._first[singles]) if len(singles) else None,
                    num_rows=len(singles),
                    pieces=slice(piece, piece + len(wholes)) if len(wholes) else None,
                    portion=len(portions) - 1,
                    piece_rows=self._places(rows[~behind]) if len(wholes) else slice(0, 0),
                    piece_places=self._index(np.flatnonzero(~behind)) if behind.any() else None,
                    kept=self._places(kept) if len(kept) else None,
                    slots=self._index(slots[kept]),
                )
            )
            width = len(units)
        return Order(levels, [self._pieces(np.concatenate(portion)) for portion in portions if any(map(len, portion))])

    def _pieces(self, units: NDArray[np.int64]) -> Pieces:
        behind = self._behind(units)
        real = torch.from_numpy(~behind).view(-1, PIECE, 1).to(self._device) if behind.any() else None
        return Pieces(self._places(self._rows(units)), real)

    def _rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """[unit * PIECE] rows of the pass; behind a short one's last row that one again."""
        within = np.minimum(np.arange(PIECE), self._lengths[units, None] - 1)
        return (self._first[units, None] + within).ravel()

    def _behind(self, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[unit * PIECE] whether it stands behind a unit's last row."""
        behind: NDArray[np.bool_] = np.arange(PIECE) >= self._lengths[units, None]
        return behind.ravel()

    def _places(self, places: NDArray[np.int64]) -> Places:
        first, last = int(places[0]), int(places[-1])
        is_whole = last - first == len(places) - 1 and bool((np.diff(places) == 1).all())
        return slice(first, last + 1) if is_whole else self._index(places)

    def _index(self, values: NDArray[np.integer]) -> Tensor:
        return index_of(values, self._device)


def index_of(values: NDArray[np.integer], device: torch.device) -> Tensor:
    """int64 on a device."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)
