"""Windows of tokens that are compressed to one key each, among the rows of a pass and before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.config import Sight
from headstart.passes.batch import PassBatch

Indices = NDArray[np.int64]


def ends_of(ratio: int) -> Sight:
    """Stands for a chunk: the last tokens of windows of ``ratio``, whose rows hold what is made of these; no heads are
    folded in what is added to the scores."""
    return None, -ratio


@dataclass(frozen=True)
class Windows:
    """Those that end with rows of a pass, along their paths."""

    rows: Tensor
    """[window] the last of each."""
    slots: Tensor
    """[window, token] of the tokens of the window before, then of its own; -1: before the text begins."""
    starts: Tensor
    """[window] position of its first token."""


def windows_of(
    batch: PassBatch,
    ratio: int,
    sequence: Indices,
    new_slots: Indices,
    physical: Callable[[Indices, Indices], Indices],
    index: Callable[[Indices], Tensor],
) -> Windows:
    """Of a pass.

    Args:
        sequence: [row] whose it is.
        new_slots: [row] where what is kept of it goes.
        physical: sequences and logical slots -> physical ones.
        index: makes tensors where the pass runs.
    """
    row = ends = np.flatnonzero((batch.positions + 1) % ratio == 0)
    places = batch.positions[ends].astype(np.int64)[:, None] + np.arange(1 - 2 * ratio, 1)
    slots = np.where(places >= 0, physical(sequence[ends][:, None], np.maximum(places, 0)), -1)
    for column in slots.T[::-1]:  # along the paths, up to the cached tokens
        if not (row >= 0).any():
            break
        column[row >= 0] = new_slots[row[row >= 0]]
        row = np.where(row >= 0, batch.parents[row], -1)
    return Windows(*map(index, (ends, slots, places[:, -ratio])))


def last_tokens(
    batch: PassBatch, ratio: int, members: Indices, rows: Indices, ancestors: NDArray[np.bool_] | None
) -> tuple[Indices, NDArray[np.bool_]]:
    """Logical slots [sequence, key] of the last tokens of windows, cached or of the pass, in the sequences ``members``,
    and whether their ``rows`` [sequence, row] see them: bool [sequence, row, key].

    ``ancestors``: [sequence, row, row] whether the second is the first or one before it; None: rows follow each other.
    """
    counts, cached = np.diff(batch.row_starts)[members], batch.cached_lengths[members].astype(np.int64)
    local, found = np.arange(rows.shape[1]), []
    for of_sequence, count, before in zip(rows, counts, cached, strict=True):
        ends = np.flatnonzero((batch.positions[of_sequence[:count]] + 1) % ratio == 0)
        found.append(np.concatenate((np.arange(ratio - 1, before, ratio), before + ends)))
    lengths = np.array([len(each) for each in found])[:, None]
    # Padding reads the sequence's first key.
    keys = np.array([np.pad(each, (0, int(lengths.max()) - len(each))) for each in found], dtype=np.int64)
    new = np.clip(keys - cached[:, None], 0, len(local) - 1)
    if ancestors is None:
        visible = new[:, None] <= np.minimum(local, counts[:, None] - 1)[:, :, None]
    else:
        of_row = np.take_along_axis(ancestors, (rows - rows[:, :1])[:, :, None], axis=1)
        visible = np.take_along_axis(of_row, np.repeat(new[:, None], len(local), axis=1), axis=2)
    is_key = np.arange(keys.shape[1]) < lengths
    return keys, (visible | (keys < cached[:, None])[:, None]) & is_key[:, None]
