"""Keys and values of heads on the native pass: pages that each sequence takes as it needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.backends.native.library import Library
from headstart.backends.native.storage import PAGE_KEYS, NativeStorage
from headstart.drafting.heads.head_pass import DraftCache
from headstart.passes.batch import IntArray

_FIRST_PAGES = 32


class NativeDraftCache(DraftCache):
    """Rows on pages of the pass they belong to."""

    def __init__(self, pages: PagePool) -> None:
        self._pool = pages
        self.pages: IntArray = np.empty(0, np.int32)
        """int32 [page] in the order of their rows."""

    def reserve(self, rows: int) -> None:
        """Make room for this many rows in all."""
        missing = -(-rows // PAGE_KEYS) - len(self.pages)
        if missing > 0:
            self.pages = np.array([*self.pages, *self._pool.take(missing)], np.int32)

    def drop(self, rows: int) -> int:
        """See ``DraftCache``."""
        pages = max(rows, 0) // PAGE_KEYS
        self._pool.give_back(self.pages[:pages].tolist())
        self.pages = self.pages[pages:]
        self.rows -= pages * PAGE_KEYS
        self.first += pages * PAGE_KEYS
        return pages * PAGE_KEYS

    def extend(self, other: DraftCache, first: int, count: int) -> None:
        """See ``DraftCache``."""
        assert isinstance(other, NativeDraftCache)
        if not self.rows:
            self.first = other.first + first
        self.reserve(self.rows + count)
        self._pool.storage.move(other.slots(first, count), self.slots(self.rows, count))
        self.rows += count

    def slots(self, first: int, count: int) -> list[int]:
        """[row] where these rows lie in the storage."""
        rows = np.arange(first, first + count, dtype=np.int32)
        slots: list[int] = (self.pages[rows // PAGE_KEYS] * PAGE_KEYS + rows % PAGE_KEYS).tolist()
        return slots

    def release(self) -> None:
        self._pool.give_back(self.pages.tolist())
        self.rows, self.pages = 0, self.pages[:0]


class PagePool:
    """Pages of a head's keys and values, as many as its sequences need; each holds rows of all its layers."""

    def __init__(self, library: Library, model: int, layers: int) -> None:
        self._library = library
        self._model = model
        self._layers = layers
        self.storage = NativeStorage(library, model, _FIRST_PAGES, PAGE_KEYS)
        self._free = list(range(_FIRST_PAGES))

    @property
    def row_bytes(self) -> int:
        """Of the keys and values of a row."""
        return self.storage.nbytes // (self.storage.num_blocks * PAGE_KEYS)

    def take(self, count: int) -> list[int]:
        """Pages that belong to no other cache.

        Raises:
            ConfigError: memory is short.
        """
        if count > len(self._free):
            self._grow(count - len(self._free))
        taken = self._free[:count]
        del self._free[:count]
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Pages that were taken."""
        self._free += pages

    def _grow(self, missing: int) -> None:
        before = self.storage
        pages = max(2 * before.num_blocks, before.num_blocks + missing)
        self.storage = NativeStorage(self._library, self._model, pages, PAGE_KEYS)
        # Each layer's pages stand one after the other, behind those of the layer before.
        held = before.memory.reshape(self._layers, -1)
        self.storage.memory.reshape(self._layers, -1)[:, : held.shape[1]] = held
        self._free += range(before.num_blocks, pages)
