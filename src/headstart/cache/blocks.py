"""Block ids and their reference counts. Knows nothing of sequences, layouts or bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from headstart.errors import CacheError, OutOfBlocksError


class BlockAllocator:
    """Hands out block ids ``0 .. num_blocks - 1``; a block is free when nobody refers to it.

    Freed blocks are reused last-in first-out, so that a sequence that rolls back and grows again stays in warm
    memory.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = np.zeros(num_blocks, dtype=np.int32)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def references(self, block: int) -> int:
        """How many holders the block has."""
        return int(self._references[block])

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each.

        Raises:
            OutOfBlocksError: too few are free; nothing was taken.
        """
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} cache blocks are needed and {len(self._free)} are free.")
        blocks = [self._free.pop() for _ in range(count)]
        self._references[blocks] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each (distinct) block."""
        if blocks and self._references[list(blocks)].min() < 1:
            raise CacheError("a free cache block cannot be shared.")
        self._references[list(blocks)] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less for each (distinct) block; those without any become free."""
        for block in blocks:
            if self._references[block] < 1:
                raise CacheError(f"cache block {block} was released more often than it was taken.")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Integrity: counts equal the references that ``holders`` show, and the rest is free exactly once.

        Raises:
            CacheError: naming the first block that is leaked, over-freed or aliased.
        """
        seen = Counter(block for blocks in holders for block in blocks)
        free = Counter(self._free)
        for block in range(self.num_blocks):
            if self._references[block] != seen[block]:
                raise CacheError(
                    f"cache block {block} counts {self._references[block]} references; {seen[block]} are held."
                )
            if free[block] != (1 if seen[block] == 0 else 0):
                raise CacheError(f"cache block {block} is held {seen[block]} times and free {free[block]} times.")
