"""Attention of rows in a fixed grid: ``AttentionLayout`` made on the device, from small tables of fixed shapes.

Every sequence has the same number of rows, and every view so many keys that all of them fit. What is padding says and
writes what another row does: rows behind a sequence's last one repeat it, sequences behind the last one repeat that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.backends.torch.attention import KeyView, RowGroup, alibi_bias, folded_bias
from headstart.models.config import Alibi, Sight

_KEY_STEP = 64
"""Keys of windows are rounded up to so many."""


@dataclass(frozen=True)
class LayoutTables:
    """Where the rows of a grid stand. *New* keys are those of the rows, and perhaps of rows of earlier passes that not
    all of them see; the rows' own are the last ones. All but ``sees`` are int64."""

    cached: Tensor
    """[sequence] keys before the new ones, all of which the rows see."""
    counts: Tensor
    """[sequence] new keys that are no padding."""
    positions: Tensor
    """[sequence, new key]"""
    sees: Tensor
    """bool [sequence, row, new key] whether the row sees it."""
    blocks: Tensor
    """[sequence, block] physical blocks of its keys."""


class StaticLayout:
    """The attention of a grid's rows (``attention.Layout``). Made and read without a word to the processor.

    Args:
        tables: where the rows stand.
        keys: of a sequence, its new rows included, at most.
        block_size: keys of a block.
        sights: as ``AttentionLayout`` has them.
        alibi: what distance takes off the scores, and the slopes on the device.
    """

    output_rows: Tensor | None = None

    def __init__(
        self,
        tables: LayoutTables,
        keys: int,
        block_size: int,
        sights: Mapping[Sight, int],
        dtype: torch.dtype,
        alibi: tuple[Alibi, Tensor] | None = None,
    ) -> None:
        self._tables, self._block_size = tables, block_size
        self._dtype, self._alibi = dtype, alibi
        self._cached, self._totals = tables.cached[:, None], (tables.cached + tables.counts)[:, None]
        sequences, rows, new = tables.sees.shape
        self._positions = tables.positions[:, new - rows :]
        local = torch.minimum(self._range(rows) + (new - rows), tables.counts[:, None] - 1)
        self.new_slots = self._physical(self._cached + local).flatten()
        views = {sight: self._view(sight, _keys_of(sight, keys, new), shared) for sight, shared in sights.items()}
        self.groups = [RowGroup(sequences, rows, None, True, views)]

    def _view(self, sight: Sight, num_keys: int, shared: int) -> KeyView:
        window, chunk = sight
        first = torch.zeros_like(self._cached)
        if window is not None:
            first = (self._cached - window + 1).clamp(min=0)
        if chunk is not None:
            first = torch.maximum(first, self._cached // chunk * chunk)
        keys = first + self._range(num_keys)
        # Padding reads the sequence's own last key: always written, so never the NaN of a foreign or freed slot.
        slots = self._physical(torch.minimum(keys, self._totals - 1)).flatten()

        sees, positions = self._tables.sees, self._positions
        new = (keys - self._cached).clamp(0, sees.shape[2] - 1)
        on_path = sees.gather(2, new[:, None].expand(-1, sees.shape[1], -1))
        visible = on_path & (keys < self._totals)[:, None] | (keys < self._cached)[:, None]
        bias = None
        if window is not None or chunk is not None or self._alibi is not None:
            key_positions = torch.where(keys < self._cached, keys, self._tables.positions.gather(1, new))
            if window is not None:
                visible &= positions[:, :, None] - key_positions[:, None] < window
            if chunk is not None:
                visible &= positions[:, :, None] // chunk == key_positions[:, None] // chunk
            if self._alibi is not None:
                bias = alibi_bias(*self._alibi, positions.float(), key_positions.float())
        return KeyView(slots, num_keys, self._mask(visible, bias, shared))

    def _mask(self, visible: Tensor, bias: Tensor | None, shared: int) -> Tensor:
        hidden = ~visible[:, None]
        if bias is not None:
            return folded_bias(bias.masked_fill(hidden, -torch.inf), shared).to(self._dtype)
        mask = torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(shared, dim=2) if mask.shape[2] > 1 else mask

    def _physical(self, logical: Tensor) -> Tensor:
        """[sequence, slot] physical slots of logical ones."""
        blocks = self._tables.blocks.gather(1, logical // self._block_size)
        return blocks * self._block_size + logical % self._block_size

    def _range(self, end: int) -> Tensor:
        return torch.arange(end, device=self._cached.device)


def _keys_of(sight: Sight, keys: int, new: int) -> int:
    """Keys that the rows of one sequence may see between them, of so many."""
    for reach in sight:
        if reach is not None:
            keys = min(keys, -(-(reach - 1 + new) // _KEY_STEP) * _KEY_STEP)
    return keys


def padded(count: int, least: int = 1) -> int:
    """The least power of two that is no smaller than either."""
    return 1 << (max(count, least) - 1).bit_length()


def coarsely_padded(count: int, least: int = 1) -> int:
    """The least power of four that is no smaller than either: of what costs next to nothing, while each further shape
    costs a recording."""
    bits = (max(count, least) - 1).bit_length()
    return 1 << (bits + bits % 2)
