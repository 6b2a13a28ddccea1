"""What several draft caches keep of their rows in common tensors, and which rows of a step see which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.attention import FOLDED_ROWS, KeyView, RowGroup, added_mask, adjacent
from headstart.drafting.heads.head_pass import DraftCache, DraftRows
from headstart.models.config import EVERYTHING, Sight

BLOCK = 32
"""Rows that are handed out together."""
FEWEST_BLOCKS = 4
"""There are in a pool at first."""
RECORDED_BLOCKS = 128
"""The same where recordings read a pool where it stands: they are lost when it moves."""
Slots = NDArray[np.int64]


class DraftPool:
    """Tensors [slot, ...] that grow, and their slots, block by block.

    Args:
        shapes: of what a row keeps in each tensor.
        blocks: there are at first.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device, blocks: int = FEWEST_BLOCKS
    ) -> None:
        self._least = blocks
        self.moves = 0
        """How often the tensors were replaced by larger ones."""
        self.tensors = [torch.zeros((0, *shape), dtype=dtype, device=device) for shape in shapes]
        self._free: set[int] = set()
        self._blocks = 0

    def take(self, after: int | None) -> int:
        """A block; the one ``after`` another where that is free, so that rows stay adjacent."""
        if not self._free:
            more = max(self._blocks, self._least)
            self.moves += 1
            self.tensors = [torch.cat((each, each.new_zeros((more * BLOCK, *each.shape[1:])))) for each in self.tensors]
            self._free.update(range(self._blocks, self._blocks + more))
            self._blocks += more
        block = after + 1 if after is not None and after + 1 in self._free else min(self._free)
        self._free.remove(block)
        return block

    def give_back(self, blocks: Sequence[int]) -> None:
        """Blocks that nobody reads any more."""
        self._free.update(blocks)

    def index(self, slots: Slots) -> Tensor:
        """Slots as an index of the tensors."""
        return torch.from_numpy(slots).to(self.tensors[0].device)


class PooledDraftCache(DraftCache):
    """The rows of one sequence in the layers of a head, each of which may lack a few at the beginning.

    Args:
        pool: a tensor for each layer, then those of which no row is lacking.
        lacking: [layer] how many, where a text begins.
    """

    def __init__(self, pool: DraftPool, lacking: Sequence[int]) -> None:
        self._pool = pool
        self._blocks: list[int] = []
        self._at_start = list(lacking)
        self.lacking = list(lacking)
        """[layer] rows that it lacks."""

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        if not rows:
            self.lacking = self._at_start.copy()

    def reserve(self, rows: int) -> None:
        """Have room for so many."""
        while len(self._blocks) * BLOCK < rows:
            self._blocks.append(self._pool.take(self._blocks[-1] if self._blocks else None))

    @property
    def blocks(self) -> Sequence[int]:
        """Blocks of its rows, in order."""
        return self._blocks

    def slots(self, first: int, end: int) -> Slots:
        """[row] physical slots of some rows of a layer, counted from the first that it has."""
        rows = np.arange(first, end)
        return np.asarray(self.blocks, dtype=np.int64)[rows // BLOCK] * BLOCK + rows % BLOCK

    def drop(self, rows: int) -> int:
        """See ``DraftCache``. Layers go on lacking as many rows at the beginning."""
        blocks = max(rows, 0) // BLOCK
        self._pool.give_back(self._blocks[:blocks])
        del self._blocks[:blocks]
        self.rows -= blocks * BLOCK
        self.first += blocks * BLOCK
        return blocks * BLOCK

    @torch.inference_mode()
    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """See ``DraftCache``."""
        assert isinstance(other, PooledDraftCache)
        if not self.rows:
            self.first = other.first + first
            self.lacking = [max(lacking - first, 0) for lacking in other.lacking]
        end = self.rows + count
        self.reserve(end)
        complete = [0] * (len(self._pool.tensors) - len(self.lacking))
        for tensor, ours, theirs in zip(
            self._pool.tensors, self.lacking + complete, other.lacking + complete, strict=True
        ):
            source = other.slots(max(first - theirs, 0), max(first + count - theirs, 0))
            target = self.slots(end - ours - len(source), end - ours) if len(source) else source
            tensor[self._pool.index(target)] = tensor[self._pool.index(source)]
        self.rows = end

    def release(self) -> None:
        self._pool.give_back(self._blocks)
        self._blocks = []
        self.truncate(0)


class DraftLayout:
    """The attention of a step's rows in one layer (``attention.Layout``): true rows see those before them, rows of
    drafts all true rows and their own path.

    Args:
        groups: the rows of each sequence, whose caches have room for them.
        counts: [group] how many of them the layer has: the last ones.
        layer: its place in the caches.
        sight: how far its rows see.
        heads: query heads that share a key-value head.
        mutual: rows see those behind them, too.
    """

    output_rows: Tensor | None = None

    def __init__(
        self,
        groups: Sequence[DraftRows],
        counts: Sequence[int],
        layer: int,
        sight: Sight,
        heads: int,
        dtype: torch.dtype,
        device: torch.device,
        mutual: bool = False,
    ) -> None:
        self.groups: list[RowGroup] = []
        new: list[Slots] = []
        first_row = 0
        for group, count in zip(groups, counts, strict=True):
            if not count:
                continue
            cache = group.cache
            assert isinstance(cache, PooledDraftCache)
            end = cache.rows + group.count - cache.lacking[layer]
            slots = cache.slots(0, end)
            new.append(slots[end - count :])
            folded = count <= FOLDED_ROWS
            mask = None
            if not mutual or sight != EVERYTHING:
                visible = _visible(group, count, end, cache.lacking[layer], sight, mutual)
                mask = added_mask(visible[None], heads if folded else 1, dtype, device)
            held = adjacent(slots)
            view = KeyView(torch.from_numpy(slots).to(device) if held is None else held, end, mask)
            rows = torch.arange(first_row, first_row + count, device=device) if len(groups) > 1 else None
            self.groups.append(RowGroup(1, count, rows, folded, {sight: view}))
            first_row += count
        self.new_slots = torch.from_numpy(np.concatenate(new)).to(device)


def _visible(
    group: DraftRows, count: int, keys: int, lacking: int, sight: Sight, mutual: bool = False
) -> NDArray[np.bool_]:
    """bool [row, key] of the last ``count`` rows of a group and the first ``keys`` rows of the layer."""
    window, _ = sight
    if group.paths is None:
        rows, places = np.arange(keys - count, keys)[:, None], np.arange(keys)[None]
        return (mutual | (places <= rows)) & (window is None or rows - places < window)
    true_rows, depth = group.true_rows - lacking, group.paths.shape[1]
    visible = np.zeros((count, keys), dtype=np.bool_)
    reach = depth if window is None else min(depth, window)
    first = 0 if window is None else max(true_rows + depth - window, 0)
    visible[:, first:true_rows] = True
    np.put_along_axis(visible, group.paths[:, depth - reach :].astype(np.int64) + true_rows, True, axis=1)
    return visible
