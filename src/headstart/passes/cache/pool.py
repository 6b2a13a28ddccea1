"""The cache's blocks and what they hold: handed out, published for others to find, read from files, given up.

Knows no sequences. A published block outlives those that hold it until its memory is needed. A chain of published
blocks is found in memory by the ``PrefixIndex``, or block by block in ``files``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headstart.passes.batch import KVStorage, PortableStorage
from headstart.passes.cache.blocks import BlockAllocator
from headstart.passes.cache.encoder_memory import EncoderMemories
from headstart.passes.cache.prefix import Link, PrefixIndex
from headstart.passes.cache.prefix_files import PrefixFiles
from headstart.passes.cache.states import StateSlots


class BlockPool:
    """Blocks of one cache, states after their tokens, and encoder memories in them.

    Args:
        storage: the bytes.
        prefixes: what published blocks hold; None: nothing is published.
        num_states: slots of states that the storage has; 0: the model's layers keep none.
    """

    def __init__(self, storage: KVStorage, prefixes: PrefixIndex | None, num_states: int) -> None:
        self.block_size = storage.block_size
        self.prefixes = prefixes
        self.files: PrefixFiles | None = None
        """Where published blocks are found, and left, too."""
        self.allocator = BlockAllocator(storage.num_blocks, lambda block: self._evicted(block))
        self.states = StateSlots(num_states, self.block_size)
        self.memories = EncoderMemories(self.allocator, self.block_size, keeps=prefixes is not None)
        self._storage = storage

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each.

        Raises:
            OutOfBlocksError: too few are free; nothing was taken.
        """
        blocks = self.allocator.allocate(count)
        self.states.forget_blocks(blocks)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less for each, the last one first: what others may share least is the first to be given up."""
        prefixes, allocator = self.prefixes, self.allocator
        if prefixes is None:
            allocator.release(blocks[::-1])
        else:
            allocator.release(blocks[::-1], prefixes.__contains__)
        if self.states.num_states:
            gone = [block for block in blocks if not allocator.references(block)]
            self.states.forget_blocks(gone if prefixes is None else [block for block in gone if block not in prefixes])

    def forget(self, block: int) -> None:
        """What was published of a block holds no longer."""
        if self.prefixes is not None:
            self.prefixes.forget(block)
        if self.files is not None:
            self.files.unsaved.pop(block, None)

    def find(self, end: Link, tokens: Sequence[int], first: int) -> list[Link]:
        """The published blocks in memory that hold the tokens from the ``first`` on, behind the chain that ends with
        ``end``; each with one more reference."""
        assert self.prefixes is not None
        links: list[Link] = []
        for start in range(first, len(tokens) - self.block_size + 1, self.block_size):
            link = self.prefixes.find(end, tokens[start : start + self.block_size])
            if link is None:
                break
            links.append(end := link)
        self.allocator.share([link.block for link in links])
        return links

    def read(self, end: Link, tokens: Sequence[int], first: int, spare: int) -> tuple[list[Link], bool]:
        """The same from files, as many as this step has time for, and ``spare`` blocks and states are left free.

        Returns:
            The blocks, each with one reference; and whether more may be read at the next step.
        """
        links: list[Link] = []
        if self.files is None or self.prefixes is None:
            return links, False
        size = self.block_size
        for start in range(first, len(tokens) - size + 1, size):
            if self.allocator.num_free <= spare:
                break
            after = tokens[start : start + size]
            found = self.files.read(self.prefixes.digest(end, after), after, start // size)
            if found is None:
                break
            links.append(end := self.take_in(end, after, found, spare))
            if self.files.read_bytes >= self.files.step_bytes:
                return links, True
        return links, False

    def take_in(self, end: Link, tokens: Sequence[int], content: bytes, spare: int) -> Link:
        """A block that is not known, as the storage gave it once: published, with one reference."""
        storage = cast(PortableStorage, self._storage)
        (block,) = self.take(1)
        keeps = len(content) > storage.block_nbytes and self.states.allocator.num_free > spare
        storage.write_block(block, content, self.states.keep(block) if keeps else None)
        return self._insert(end, tokens, block)

    def publish(self, end: Link, tokens: Sequence[int], block: int) -> Link:
        """Let others find a full block of these tokens behind the chain that ends with ``end``; the chain's new end,
        which is another block where the same tokens are known already."""
        end = self._insert(end, tokens, block)
        if end.block != block:
            self.states.move(block, end.block)
        elif self.files is not None:
            self.files.unsaved[block] = end
        return end

    def _insert(self, end: Link, tokens: Sequence[int], block: int) -> Link:
        assert self.prefixes is not None
        end, forgotten = self.prefixes.insert(end, tokens, block)
        if forgotten is not None:
            self.unpublish(forgotten)
        return end

    def unpublish(self, block: int) -> None:
        """Keep a block no longer."""
        self.forget(block)
        self.states.forget_blocks([block])
        self.allocator.discard(block)

    def _evicted(self, block: int) -> None:
        """A kept block is handed out again."""
        self.forget(block)
        self.states.forget_blocks([block])
        self.memories.forget(block)
