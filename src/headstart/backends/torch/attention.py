"""Attention of ragged rows over a paged cache.

A pass's rows belong to sequences of different lengths and row counts. Which keys each row reads is the same in
every layer, so gather indices and masks are made once a pass (``AttentionLayout``); a layer then only gathers and
multiplies. Sequences are grouped so that padding, which exists in here alone, stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.few_bit_rows import read_rows
from headstart.backends.torch.window_ends import last_tokens, windows_of
from headstart.models.config import Alibi, Sight
from headstart.passes.batch import IntArray, PassBatch

Indices = NDArray[np.int64]

FOLDED_ROWS = 64
"""Up to this many rows, the query heads that share a key-value head become rows of one product."""
MEMORY: Sight = (-1, None)
"""Stands for a window: the sequence's encoder memory, all of which every row sees."""
_SHORT_CONTEXT = 256
"""Contexts up to this length may share a group; above, lengths within a factor of 4 do."""


@dataclass(frozen=True)
class KeyView:
    """The keys a group of sequences reads in layers of one window."""

    slots: Tensor | slice
    """[sequence * key] physical slots; a slice where they are one sequence's and adjacent."""
    num_keys: int
    mask: Tensor | None
    """[sequence, 1, row, key] added to the scores (0 or -inf); with ALiBi for each head. None where every row sees
    every key just as it is."""
    distances: Tensor | None = None
    """[sequence, row, key] int64: how far before the row the key stands, where asked for; of no use where unseen."""


@dataclass(frozen=True)
class RowGroup:
    """Sequences with similar row counts and contexts, padded to one size."""

    num_sequences: int
    num_rows: int
    """Rows of each sequence, padding included (a copy of its last row)."""
    rows: Tensor | None
    """[sequence * row] rows of the pass; None where they are all of the pass's rows in order."""
    folded: bool
    views: dict[Sight, KeyView]
    """How far layers see, or ``MEMORY`` -> the keys of those that see so far."""


class Layout(Protocol):
    """What a layer's attention needs to know of the rows of a pass."""

    new_slots: Tensor
    """[row] physical slots the rows' keys and values go to."""
    groups: list[RowGroup]
    output_rows: Tensor | None
    """[row] where in the groups' concatenated outputs a row's is; None where they are in order."""


class AttentionLayout:
    """Everything about a pass's attention that does not depend on the layer.

    ``sights``: how far the model's layers see, and the query heads that share a key-value head in those that see so
    far. ``alibi``: what distance takes off the scores.
    ``with_distances``: views of windows tell how far apart rows and keys stand.
    """

    def __init__(
        self,
        batch: PassBatch,
        block_size: int,
        sights: Mapping[Sight, int],
        dtype: torch.dtype,
        device: torch.device,
        alibi: Alibi | None = None,
        with_distances: bool = False,
    ) -> None:
        self._batch = batch
        self._alibi = alibi
        self._with_distances = with_distances
        self._block_size = block_size
        self._dtype = dtype
        self._device = device
        self._starts = batch.row_starts[:-1].astype(np.int64)
        self._counts = np.diff(batch.row_starts).astype(np.int64)
        self._cached = batch.cached_lengths.astype(np.int64)

        sequence = np.repeat(np.arange(batch.num_sequences), self._counts)
        logical = self._cached[sequence] + np.arange(batch.num_rows) - self._starts[sequence]
        new_slots = self._physical(sequence, logical)
        self.new_slots = self._index(new_slots)
        ratios = [-chunk for _, chunk in sights if chunk is not None and chunk < 0]
        known = sequence, new_slots, self._physical, self._index
        self.windows = {ratio: windows_of(batch, ratio, *known) for ratio in ratios}

        self.groups: list[RowGroup] = []
        place = np.empty(batch.num_rows, dtype=np.int64)
        offset = 0
        for members in self._grouped():
            group, rows, real = self._group(members, sights)
            self.groups.append(group)
            place[rows[real]] = offset + np.flatnonzero(real)
            offset += rows.size
        in_order = offset == batch.num_rows and bool((place == np.arange(offset)).all())
        self.output_rows = None if in_order else self._index(place)

    def _grouped(self) -> list[Indices]:
        """Sequences by order of magnitude of rows and context; one long prompt chunk pads no decode row."""
        row_class = np.ceil(np.log2(self._counts) / 2)
        context = np.maximum(self._cached + self._counts, _SHORT_CONTEXT)
        context_class = np.ceil(np.log2(context / _SHORT_CONTEXT) / 2)
        group = row_class * 64 + context_class
        return [np.flatnonzero(group == each) for each in np.unique(group)]

    def _group(self, members: Indices, sights: Mapping[Sight, int]) -> tuple[RowGroup, Indices, NDArray[np.bool_]]:
        """The group of the sequences ``members``, its rows [sequence * row], and which of them are no padding."""
        counts = self._counts[members][:, None]
        num_rows = int(counts.max())
        local = np.arange(num_rows)
        real = local < counts
        rows = self._starts[members][:, None] + np.minimum(local, counts - 1)
        parents = self._batch.parents[rows].astype(np.int64)
        is_chain = bool((parents == np.where(local == 0, -1, rows - 1))[real].all())
        ancestors = None if is_chain else _ancestors(np.where(parents < 0, -1, parents - rows[:, :1]), num_rows)
        folded = num_rows <= FOLDED_ROWS
        views = {
            sight: self._ends_view(members, rows, ancestors, sight)
            if (sight[1] or 0) < 0
            else self._view(members, rows, ancestors, sight, shared if folded else 1)
            for sight, shared in sights.items()
        }
        if self._batch.memory_lengths is not None:
            views[MEMORY] = self._memory_view(members, num_rows)
        in_order = rows.size == self._batch.num_rows and bool((rows.ravel() == np.arange(rows.size)).all())
        index = None if in_order else self._index(rows.ravel())
        return RowGroup(len(members), num_rows, index, folded, views), rows.ravel(), real.ravel()

    def _view(
        self, members: Indices, rows: Indices, ancestors: NDArray[np.bool_] | None, sight: Sight, folded: int
    ) -> KeyView:
        """``folded``: heads of a row that stand as rows of one product."""
        window, chunk = sight
        cached = self._cached[members][:, None]
        totals = cached + self._counts[members][:, None]
        first = np.zeros_like(cached) if window is None else np.maximum(cached - window + 1, 0)
        if chunk is not None:
            first = np.maximum(first, cached // chunk * chunk)
        num_keys = int((totals - first).max())
        # Padding reads the sequence's own last key: always written, so never the NaN of a foreign or freed slot.
        keys = first + np.arange(num_keys)
        slots = self._physical(members[:, None], np.minimum(keys, totals - 1)).ravel()

        row_in_sequence = rows - rows[:, :1]
        if ancestors is None:
            visible = keys[:, None, :] <= (cached + row_in_sequence)[:, :, None]
        else:
            new_key = np.clip(keys - cached, 0, rows.shape[1] - 1)
            of_row = np.take_along_axis(ancestors, row_in_sequence[:, :, None], axis=1)
            visible = np.take_along_axis(of_row, new_key[:, None, :], axis=2) & (keys < totals)[:, None, :]
            visible |= (keys < cached)[:, None, :]
        bias = distances = None
        if window is not None or chunk is not None or self._alibi is not None or self._with_distances:
            key_position = self._places(members, rows, keys)
            row_position = self._batch.positions[rows]
            distances = row_position[:, :, None] - key_position[:, None, :]
            if window is not None:
                visible &= distances < window
            if chunk is not None:
                visible &= row_position[:, :, None] // chunk == key_position[:, None, :] // chunk
            if self._alibi is not None:
                slopes = torch.tensor(self._alibi.slopes)
                at = (torch.from_numpy(each.astype(np.float32)) for each in (row_position, key_position))
                bias = alibi_bias(self._alibi, slopes, *at)
        told = self._index(distances.astype(np.int64)) if distances is not None and self._with_distances else None
        return KeyView(self._slots(slots, len(members)), num_keys, self._mask(visible, folded, bias), told)

    def _ends_view(self, members: Indices, rows: Indices, ancestors: NDArray[np.bool_] | None, sight: Sight) -> KeyView:
        """Of the last tokens of windows."""
        keys, visible = last_tokens(self._batch, -(sight[1] or 0), members, rows, ancestors)
        slots = self._index(self._physical(members[:, None], keys).ravel())
        told = self._index(self._distances(members, rows, keys)) if self._with_distances else None
        return KeyView(slots, keys.shape[1], self._mask(visible, 1), told)

    def _distances(self, members: Indices, rows: Indices, keys: Indices) -> Indices:
        """[sequence, row, key] how far before rows the logical slots ``keys`` [sequence, key] stand."""
        return self._batch.positions[rows].astype(np.int64)[:, :, None] - self._places(members, rows, keys)[:, None, :]

    def _places(self, members: Indices, rows: Indices, keys: Indices) -> Indices:
        """[sequence, key] positions of logical slots."""
        cached = self._cached[members][:, None]
        new_row = np.clip(keys - cached, 0, None) + rows[:, :1]
        of_new = self._batch.positions[np.minimum(new_row, self._batch.num_rows - 1)]
        return np.where(keys < cached, keys, of_new)

    def _memory_view(self, members: Indices, num_rows: int) -> KeyView:
        """Of decoders whose heads share no keys."""
        tables, lengths = self._batch.memory_tables, self._batch.memory_lengths
        assert tables is not None
        assert lengths is not None
        totals = lengths[members].astype(np.int64)[:, None]
        keys = np.arange(int(totals.max()))
        slots = self._physical(members[:, None], np.minimum(keys, totals - 1), tables).ravel()
        visible = np.broadcast_to((keys < totals)[:, None], (len(members), num_rows, len(keys)))
        return KeyView(self._slots(slots, len(members)), len(keys), self._mask(visible, 1))

    def _physical(self, sequence: Indices, logical: Indices, tables: IntArray | None = None) -> Indices:
        """Physical slots of logical ones; ``tables``: others than those of the sequences' own tokens."""
        tables = self._batch.block_tables if tables is None else tables
        block = tables[sequence, logical // self._block_size].astype(np.int64)
        return block * self._block_size + logical % self._block_size

    def _slots(self, slots: Indices, num_sequences: int) -> Tensor | slice:
        return adjacent(slots) or self._index(slots) if num_sequences == 1 else self._index(slots)

    def _mask(self, visible: NDArray[np.bool_], folded: int, bias: Tensor | None = None) -> Tensor | None:
        if bias is not None:
            bias = bias.masked_fill_(torch.from_numpy(~visible[:, None]), -torch.inf)
            bias = folded_bias(bias, folded) if folded > 1 else bias
            return bias.to(self._device, self._dtype)
        return added_mask(visible, folded, self._dtype, self._device)

    def _index(self, values: Indices) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def adjacent(slots: Indices) -> slice | None:
    """Slots of one sequence as a slice; None where they are not adjacent."""
    if slots[-1] - slots[0] == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return None


def added_mask(visible: NDArray[np.bool_], heads: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What is added to scores, [sequence, 1, row * head, key]; None where every row sees every key.

    Args:
        visible: [sequence, row, key].
        heads: of a row, that stand as rows of one product.
    """
    if visible.all():
        return None
    if heads > 1 and visible.shape[1] > 1:
        visible = np.repeat(visible, heads, axis=1)
    hidden = torch.from_numpy(~visible[:, None]).to(device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


def _ancestors(parents: Indices, num_rows: int) -> NDArray[np.bool_]:
    """[sequence, row, row] whether the second row is the first or an ancestor of it.

    ``parents``: [sequence, row] within the sequence, -1 for none. By doubling: knowing each row's first 2^k
    ancestors and the next one up, a step knows 2^(k+1).
    """
    nobody = num_rows
    num_sequences = len(parents)
    reach = np.zeros((num_sequences, num_rows + 1, num_rows), dtype=np.bool_)
    reach[:, np.arange(num_rows), np.arange(num_rows)] = True
    jump = np.full((num_sequences, num_rows + 1), nobody, dtype=np.int64)
    jump[:, :num_rows] = np.where(parents < 0, nobody, parents)
    while (jump < nobody).any():
        reach |= np.take_along_axis(reach, jump[:, :, None], axis=1)
        jump = np.take_along_axis(jump, jump, axis=1)
    return reach[:, :num_rows]


def alibi_bias(alibi: Alibi, slopes: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """float32 [sequence, head, row, key] at the float32 positions [sequence, row] and [sequence, key]; ``slopes``:
    those of ``alibi``, where the positions are."""
    slopes = slopes[:, None]
    of_rows, of_keys = rows[:, None], keys[:, None]
    if alibi.coarse:
        slopes = slopes.bfloat16()
        of_rows, of_keys = ((slopes * each.bfloat16()).float() for each in (of_rows, of_keys))
        return (of_keys[:, :, None, :] - of_rows[:, :, :, None]) * alibi.scale
    return slopes[..., None] * alibi.scale * (of_keys[:, :, None, :] - of_rows[:, :, :, None])


def folded_bias(bias: Tensor, heads: int) -> Tensor:
    """[sequence, head, row, key] -> [sequence, kv_head, row * heads that share it, key]."""
    sequences, _, rows, keys = bias.shape
    return bias.view(sequences, -1, heads, rows, keys).transpose(2, 3).flatten(2, 3)


def attend(
    queries: Tensor,
    cache: Tensor,
    layout: Layout,
    sight: Sight,
    scale: float,
    softcap: float | None = None,
    masks: Sequence[Tensor | None] | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
    further: Sequence[tuple[Tensor, Tensor] | None] | None = None,
) -> Tensor:
    """[row, head * value_dim] attention output of one layer.

    ``queries``: [row, head, head_dim], rotated. ``cache``: [slot, 2, kv_head, head_dim], keys and values of this
    layer as ``kept_row`` has them, the pass's own already written; [slot, 1, ...] where the first ``value_dim`` of a
    key are its value.
    ``softcap``: scores become softcap * tanh(score / softcap) before the mask (Gemma 2, section 2). ``masks``: [group]
    in place of the views', with biases [sequence, head, row, key]; every query head has a key-value head of its own
    then. ``sinks``: float32 [head] a score of every head that no key has. ``further``: [group] keys that are their own
    values [sequence, key, head_dim], for a single head, and what is added to their scores [sequence, 1, row, key].
    """
    given = [group.views[sight].mask for group in layout.groups] if masks is None else masks
    outputs = [
        _attend_group(queries, cache, group, sight, scale, softcap, mask, sinks, value_dim, more)
        for group, mask, more in zip(layout.groups, given, further or [None] * len(given), strict=True)
    ]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if layout.output_rows is None else joined.index_select(0, layout.output_rows)


def _attend_group(
    queries: Tensor,
    cache: Tensor,
    group: RowGroup,
    sight: Sight,
    scale: float,
    softcap: float | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    value_dim: int | None,
    further: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """[sequence * row, head * value_dim]."""
    view = group.views[sight]
    heads, head_dim = queries.shape[1:]
    planes, kv_heads = cache.shape[1:3]
    if group.rows is not None:
        queries = queries.index_select(0, group.rows)
    kept = cache[view.slots] if isinstance(view.slots, slice) else cache.index_select(0, view.slots)
    gathered = read_rows(kept, head_dim, queries.dtype)
    by_plane = gathered.view(group.num_sequences, view.num_keys, planes, kv_heads, head_dim).permute(2, 0, 3, 1, 4)
    keys, values = by_plane[0], by_plane[-1][..., :value_dim]

    sequences, rows, shared = group.num_sequences, group.num_rows, heads // kv_heads
    if further is not None:
        keys = values = torch.cat((keys, further[0][:, None]), dim=2)
        added = further[1].repeat_interleave(shared, 2) if group.folded else further[1]
        before = added.new_zeros(1) if mask is None else mask
        mask = torch.cat((before.expand(*added.shape[:3], view.num_keys), added), dim=-1)
    if group.folded:
        grid = queries.view(sequences, rows, kv_heads, shared, head_dim).transpose(1, 2)
        grid = grid.reshape(sequences, kv_heads, rows * shared, head_dim)
    else:
        grid = queries.view(sequences, rows, heads, head_dim).transpose(1, 2)
    if softcap is None and sinks is None:
        output = F.scaled_dot_product_attention(
            grid, keys, values, mask, scale=scale, enable_gqa=not group.folded and shared > 1
        )
    else:
        if sinks is not None:
            of_rows = sinks.view(kv_heads, 1, shared).expand(-1, rows, -1)
            of_rows = of_rows.reshape(kv_heads, -1) if group.folded else of_rows.transpose(1, 2).reshape(heads, -1)
            sinks = of_rows[..., None]
        output = _scored_attention(grid, keys, values, mask, scale, softcap, sinks)
    if group.folded:
        output = output.view(sequences, kv_heads, rows, shared, -1)
    return output.transpose(1, 2).reshape(sequences * rows, -1)


def _scored_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Step by step; ``sinks``: [head, row, 1]."""
    if queries.shape[1] != keys.shape[1]:
        shared = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    if softcap is None:
        scores = torch.matmul(queries, keys.transpose(2, 3)) * scale
    else:
        scores = torch.tanh(torch.matmul(queries, keys.transpose(2, 3)) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores.float(), sinks.expand(len(scores), -1, -1, -1)), dim=-1)
    shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(shares if sinks is None else shares[..., :-1], values)
