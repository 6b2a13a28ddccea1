"""What a head has read of earlier texts, block by block, for sequences that begin like them.

The target's cache finds the blocks of a prefix again; its states, from which a head makes its rows, are gone by then.
So a head keeps its own rows of full blocks, under the same keys: a block's tokens after those of the blocks before it.
Row i reads the token after position i. The rows kept with a block are those that read its tokens, from the one of the
position before it to that of its last position but one: no later token shows in them. What a sequence needs besides to
go on are the features of its prefix's last position, whose row reads the first token of its own. Of blocks that a head
has passed over, for they lie before its window, there is nothing but the key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.heads.head_pass import DraftCache

Key = tuple[Hashable, tuple[int, ...]]
"""The block before (the scope, before the first), and the block's tokens."""


@dataclass(eq=False)
class ReadBlock:
    """One full block. Two with equal contents are still two: identity stands for the whole prefix."""

    key: Key
    cache: DraftCache | None = None
    """The rows that read its tokens; None: they are not known."""
    features: Features | None = None
    """[taps * hidden] of its last position; None: they are not known."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is missing."""
        return self.cache is not None and self.features is not None

    def release(self) -> None:
        """Give the memory back."""
        if self.cache is not None:
            self.cache.release()


class ReadPrefixes:
    """The blocks used last, each with all before it.

    Args:
        new_cache: an empty cache of the head.
        block_size: tokens of a block, as in the target's cache.
        max_blocks: how many are kept.
        block_bytes: of a block's rows and features.
        window: rows that a head needs at most; None: all.
    """

    def __init__(
        self,
        new_cache: Callable[[], DraftCache],
        block_size: int,
        max_blocks: int,
        block_bytes: int,
        window: int | None = None,
    ) -> None:
        self._new_cache = new_cache
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._needed = max_blocks if window is None else -(-window // block_size)
        """Blocks at the end of a prefix whose rows are of use."""
        self.max_bytes = max_blocks * block_bytes
        """What it takes when it is full."""
        self._blocks: OrderedDict[Key, ReadBlock] = OrderedDict()
        """The one used last stands last, each before the one that it follows: the end of a text goes first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def resume(self, scope: Hashable, tokens: Sequence[int], reading: Reading) -> None:
        """Let a reading begin after these tokens, if what is needed of them is kept; else it stays as it is."""
        blocks = self._find(scope, tokens)
        if not blocks or len(blocks) * self._block_size != len(tokens) or blocks[-1].features is None:
            return
        caches: list[DraftCache] = []
        for block in blocks[: -self._needed - 1 : -1]:
            if block.cache is None:
                break
            caches.append(block.cache)
        reading.resume(caches[::-1], len(tokens) - 1, blocks[-1].features)

    def wants(self, reading: Reading, before: int) -> bool:
        """Whether a block was filled since a reading's end was ``before``."""
        if not self._max_blocks:
            return False
        return reading.end // self._block_size > before // self._block_size

    def keep(self, scope: Hashable, tokens: Sequence[int], reading: Reading) -> None:
        """Keep the full blocks of a sequence.

        Args:
            tokens: the sequence's.
            reading: has read all that it knows, but the last position; a block whose features it holds no more is not
                kept, nor are those after it.
        """
        size, end = self._block_size, reading.end
        blocks = self._find(scope, tokens[:end])
        full = min(end // size, self._max_blocks)
        begun = max(len(blocks), reading.first // size)
        if (begun + 1) * size <= end - len(reading.features):
            return
        while len(self._blocks) + full - len(blocks) > self._max_blocks:
            _, given_up = self._blocks.popitem(last=False)
            given_up.release()
        for first in range(len(blocks) * size, full * size, size):
            key = (blocks[-1] if blocks else scope, tuple(tokens[first : first + size]))
            self._blocks[key] = block = ReadBlock(key)
            blocks.append(block)
        for place in reversed(range(reading.first // size, full)):
            if blocks[place].is_whole:
                break
            self._fill(blocks[place], place * size, reading)
        self._touch(blocks)

    def _fill(self, block: ReadBlock, first: int, reading: Reading) -> None:
        """Keep of the block from position ``first`` on what a reading knows of it."""
        start, last = max(first - 1, 0), first + self._block_size - 1
        if block.cache is None and reading.first <= start:
            block.cache = self._new_cache()
            block.cache.extend(reading.cache, start - reading.first, last - start)
        place = last - (reading.end - len(reading.features))
        if block.features is None and place >= 0 and last >= reading.first:
            block.features = reading.features[place].copy()

    def _find(self, scope: Hashable, tokens: Sequence[int]) -> list[ReadBlock]:
        """The kept blocks that the tokens begin with."""
        blocks: list[ReadBlock] = []
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            key = (blocks[-1] if blocks else scope, tuple(tokens[end - self._block_size : end]))
            if key not in self._blocks:
                break
            blocks.append(self._blocks[key])
        self._touch(blocks)
        return blocks

    def _touch(self, blocks: Sequence[ReadBlock]) -> None:
        for block in reversed(blocks):
            self._blocks.move_to_end(block.key)
