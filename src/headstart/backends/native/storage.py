"""Paged keys and values in the library's tile order."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.backends.native.library import Library
from headstart.errors import ConfigError

PAGE_KEYS = 32
"""Keys of a cache page: the block size is a multiple of it."""


class NativeStorage:
    """Blocks of one model's cache (``PortableStorage``), and slots of its states."""

    def __init__(
        self, library: Library, model: int, num_blocks: int, block_size: int, num_states: int = 0, q8_0: bool = False
    ) -> None:
        if block_size % PAGE_KEYS:
            raise ConfigError(f"block_size is {block_size}; the native pass needs a multiple of {PAGE_KEYS}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.model = model
        self.pages_per_block = block_size // PAGE_KEYS
        handle = library.cache_create(model, num_blocks * self.pages_per_block, num_states, q8_0)
        if not handle:
            states = f" and {num_states} states" if num_states else ""
            raise ConfigError(f"{num_blocks} cache blocks{states} do not fit in memory; ask for fewer")
        self.handle: int = handle
        self._library = library
        weakref.finalize(self, library.cache_destroy, handle)
        self.layout: str = library.file_name
        self.block_nbytes = self.pages_per_block * int(library.cache_page_size(handle))
        self.state_nbytes = int(library.cache_slot_size(handle))

    @property
    def nbytes(self) -> int:
        return int(self._library.cache_bytes(self.handle) + self._library.cache_state_bytes(self.handle))

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The raw bytes of all blocks, in the order of ``src/pass/kv_cache.h``; valid while the storage lives."""
        pointer = ctypes.cast(self._library.cache_data(self.handle), ctypes.POINTER(ctypes.c_uint8))
        return np.ctypeslib.as_array(pointer, (int(self._library.cache_bytes(self.handle)),))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots pairwise, in order (see ``KVStorage.move``)."""
        self._library.cache_move(self.handle, *self._pairs(source, target, self.block_size))

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks pairwise."""

        def pages(blocks: Sequence[int]) -> list[int]:
            return [block * self.pages_per_block + page for block in blocks for page in range(self.pages_per_block)]

        self._library.cache_copy(self.handle, *self._pairs(pages(source), pages(target), self.pages_per_block))

    def read_block(self, block: int, slot: int | None = None) -> bytes:
        """See ``PortableStorage``."""
        content = ctypes.create_string_buffer(self.block_nbytes + self.state_nbytes)
        first, count = block * self.pages_per_block, self.pages_per_block
        has_state = self._library.cache_read(self.handle, first, count, -1 if slot is None else slot, content)
        return content.raw[: len(content) if has_state else self.block_nbytes]

    def write_block(self, block: int, content: bytes, slot: int | None = None) -> None:
        """See ``PortableStorage``."""
        first, count = block * self.pages_per_block, self.pages_per_block
        self._library.cache_write(self.handle, first, count, -1 if slot is None else slot, content)

    def _pairs(self, source: Sequence[int], target: Sequence[int], per_block: int) -> tuple[object, object, int]:
        count, limit = len(source), self.num_blocks * per_block
        if count != len(target):
            raise ValueError(f"{count} sources for {len(target)} targets")
        for places in (source, target):
            if count and not 0 <= min(places) <= max(places) < limit:
                raise ValueError(f"a place is outside 0..{limit - 1}")
        table = ctypes.c_int32 * count
        return table(*source), table(*target), count
