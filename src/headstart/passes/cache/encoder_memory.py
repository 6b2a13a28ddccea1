"""Encoder memories: what the encoder made of an input, in blocks of the cache, for every sequence that reads it.

A memory belongs to an input and a salt. Sequences that want an equal one share it, as samples of a request do; the last
one to leave gives it back. Where prefixes are kept, so are memories, until their blocks are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headstart.passes.batch import EncoderInput
from headstart.passes.cache.blocks import BlockAllocator


@dataclass(eq=False)
class EncoderMemory:
    """The memory of one input."""

    source: EncoderInput
    salt: str
    blocks: list[int]
    users: int = 0
    """Sequences that read it."""
    computed: bool = False
    """Whether its blocks hold anything yet."""


class EncoderMemories:
    """Those that there are, by input and salt.

    Args:
        allocator: of the cache's blocks.
        block_size: positions of a block.
        keeps: whether memories that nobody reads stay until their blocks are needed.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int, keeps: bool) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._keeps = keeps
        self._known: dict[tuple[str, EncoderInput], EncoderMemory] = {}
        self._by_block: dict[int, EncoderMemory] = {}

    def __iter__(self) -> Iterator[EncoderMemory]:
        return iter(self._known.values())

    def blocks_needed(self, source: EncoderInput, salt: str) -> int:
        """How many free blocks ``take`` would need: those that are kept count as free."""
        memory = self._known.get((salt, source))
        return len(memory.blocks) if memory and not memory.users else 0 if memory else self._size(source)

    def take(self, source: EncoderInput, salt: str) -> EncoderMemory:
        """The memory of an input, for one more sequence.

        Raises:
            OutOfBlocksError: there is no room for it; nothing was changed.
        """
        memory = self._known.get((salt, source))
        if memory is None:
            memory = EncoderMemory(source, salt, self._allocator.allocate(self._size(source)))
            self._known[salt, source] = memory
            self._by_block |= dict.fromkeys(memory.blocks, memory)
        elif not memory.users:
            self._allocator.share(memory.blocks)
        memory.users += 1
        return memory

    def share(self, memory: EncoderMemory) -> None:
        """One more sequence reads it."""
        memory.users += 1

    def release(self, memory: EncoderMemory) -> None:
        """A sequence reads it no more."""
        memory.users -= 1
        if memory.users:
            return
        keeps = self._keeps and memory.computed
        if not keeps:
            self._drop(memory)
        self._allocator.release(memory.blocks[::-1], lambda block: keeps)

    def forget(self, block: int) -> None:
        """A kept block will hold something else, so the memory that it was part of is gone. Others are ignored."""
        memory = self._by_block.get(block)
        if memory is not None and not memory.users:
            self._drop(memory)
            for other in memory.blocks:
                if other != block:
                    self._allocator.discard(other)

    def _drop(self, memory: EncoderMemory) -> None:
        del self._known[memory.salt, memory.source]
        for block in memory.blocks:
            del self._by_block[block]

    def _size(self, source: EncoderInput) -> int:
        return -(-source.positions // self._block_size)
