"""What a transformers model remembers of sequences: pages of keys and values, tokens, and states, by cache slot.

A *slot* is a place of the paged cache: block * block_size + offset. Everything here belongs to the row that was written
to a slot, so that it moves and is copied with it. A state may be missing: whoever needs it reads the tokens again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.passes.batch import IntArray, safe_steps

_STATE_BYTES = 1 << 29
"""Of states that are kept, at most, unless a few of them take more."""
_FEWEST_STATES = 8


@dataclass(frozen=True)
class PageShape:
    """What one attention layer keeps of a token."""

    key: tuple[int, int]
    """(heads, dimensions)."""
    value: tuple[int, int]
    dtype: torch.dtype


@dataclass(frozen=True)
class State:
    """What the layers that keep no keys and values know after some row. Nobody changes it in place."""

    contents: Any
    nbytes: int


class StateShelf:
    """States by the slot of the row that they follow; those used last are kept."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, State] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, slot: int) -> bool:
        return slot in self._states

    def get(self, slot: int) -> State | None:
        """The state after the row of a slot, if it is still there."""
        if slot not in self._states:
            return None
        self._states.move_to_end(slot)
        return self._states[slot]

    def put(self, slot: int, state: State) -> None:
        """Keep it, and give up the one that was used longest ago where there are too many."""
        self.drop(slot)
        self._states[slot] = state
        self.nbytes += state.nbytes
        while self.nbytes > _STATE_BYTES and len(self._states) > _FEWEST_STATES:
            self.drop(next(iter(self._states)))

    def drop(self, slot: int) -> None:
        """Another row is written there."""
        state = self._states.pop(slot, None)
        if state is not None:
            self.nbytes -= state.nbytes

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Pairwise; where a source has none the target gets none."""
        for state, slot in zip([self._states.get(slot) for slot in source], target, strict=True):
            self.drop(slot)
            if state is not None:
                self.put(slot, state)


class TransformersStorage:
    """A ``KVStorage``: keys and values of each layer [slot, head, dimension], tokens [slot], states of some slots."""

    def __init__(self, layers: Sequence[PageShape], num_blocks: int, block_size: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        slots = num_blocks * block_size
        self.keys = [torch.zeros((slots, *layer.key), dtype=layer.dtype, device=device) for layer in layers]
        self.values = [torch.zeros((slots, *layer.value), dtype=layer.dtype, device=device) for layer in layers]
        self.tokens: IntArray = np.zeros(slots, dtype=np.int32)
        self.states = StateShelf()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values)) + self.tokens.nbytes + self.states.nbytes

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots pairwise, in order (see ``KVStorage.move``)."""
        for sources, targets in safe_steps(source, target):
            self._copy(sources, targets)

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks pairwise."""
        within = np.arange(self.block_size)
        sources = np.asarray(source, dtype=np.int64)[:, None] * self.block_size + within
        targets = np.asarray(target, dtype=np.int64)[:, None] * self.block_size + within
        self._copy(sources.ravel(), targets.ravel())

    @torch.inference_mode()
    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """``keys``, ``values``: [1, head, row, dimension] of the rows that go to ``slots`` [row]."""
        self.keys[layer].index_copy_(0, slots, keys[0].transpose(0, 1).to(self.keys[layer].dtype))
        self.values[layer].index_copy_(0, slots, values[0].transpose(0, 1).to(self.values[layer].dtype))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [1, head, slot, dimension] each."""
        keys, values = (pages[layer].index_select(0, slots).transpose(0, 1) for pages in (self.keys, self.values))
        return keys.unsqueeze(0), values.unsqueeze(0)

    @torch.inference_mode()
    def _copy(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self.tokens[target] = self.tokens[source]
        self.states.copy(source.tolist(), target.tolist())
        if not self.keys:
            return
        sources, targets = (torch.from_numpy(slots).to(self.keys[0].device) for slots in (source, target))
        for pages in (*self.keys, *self.values):
            pages.index_copy_(0, targets, pages.index_select(0, sources))


def physical_slots(block_table: IntArray, block_size: int, first: int, end: int) -> NDArray[np.int64]:
    """[end - first] slots of a sequence's logical places ``first`` to ``end``."""
    logical = np.arange(first, end, dtype=np.int64)
    return block_table[logical // block_size].astype(np.int64) * block_size + logical % block_size
