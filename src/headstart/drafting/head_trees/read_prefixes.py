"""What a head has read of earlier texts, block by block, for sequences that begin like them.

The target's cache finds the blocks of a prefix again; its states, from which a head makes its rows, are gone by then.
So a head keeps its own rows of full blocks, under the same keys: a block's tokens after those of the blocks before it.
Row i reads the token after position i. The rows kept with a block are those that read its tokens, from the one of the
position before it to that of its last position but one: no later token shows in them. What a sequence needs besides to
go on are the features of its prefix's last position, whose row reads the first token of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.heads.head_pass import DraftCache

Key = tuple[Hashable, tuple[int, ...]]
"""The block before (the scope, before the first), and the block's tokens."""


@dataclass(frozen=True, eq=False)
class ReadBlock:
    """One full block. Two with equal contents are still two: identity stands for the whole prefix."""

    key: Key
    cache: DraftCache
    """The rows that read its tokens."""
    features: Features
    """[taps * hidden] of its last position."""


class ReadPrefixes:
    """The blocks used last, each with all before it.

    Args:
        new_cache: an empty cache of the head.
        block_size: tokens of a block, as in the target's cache.
        max_blocks: how many are kept.
        block_bytes: of a block's rows and features.
    """

    def __init__(self, new_cache: Callable[[], DraftCache], block_size: int, max_blocks: int, block_bytes: int) -> None:
        self._new_cache = new_cache
        self._block_size = block_size
        self._max_blocks = max_blocks
        self.max_bytes = max_blocks * block_bytes
        """What it takes when it is full."""
        self._blocks: OrderedDict[Key, ReadBlock] = OrderedDict()
        """The one used last stands last, each before the one that it follows: the end of a text goes first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def resume(self, scope: Hashable, tokens: Sequence[int], reading: Reading) -> None:
        """Let a reading begin after these tokens, if all of them are kept; else it stays as it is."""
        blocks = self._find(scope, tokens)
        if blocks and len(blocks) * self._block_size == len(tokens):
            reading.resume([block.cache for block in blocks], blocks[-1].features)

    def wants(self, reading: Reading, before: int) -> bool:
        """Whether a block was filled since a reading's end was ``before``."""
        if not self._max_blocks or reading.first:
            return False
        return reading.end // self._block_size > before // self._block_size

    def keep(self, scope: Hashable, tokens: Sequence[int], reading: Reading) -> None:
        """Keep the full blocks of a sequence.

        Args:
            tokens: the sequence's.
            reading: has read all that it knows, but the last position; a block whose features it holds no more is not
                kept, nor are those after it.
        """
        if reading.first:
            return
        size, known, features = self._block_size, reading.known, reading.features
        blocks = self._find(scope, tokens[:known])
        full = min(known // size, self._max_blocks)
        if (len(blocks) + 1) * size <= known - len(features):
            return
        while len(self._blocks) + full - len(blocks) > self._max_blocks:
            _, given_up = self._blocks.popitem(last=False)
            given_up.cache.release()
        for first in range(len(blocks) * size, full * size, size):
            row, last = max(first - 1, 0), first + size - 1
            cache = self._new_cache()
            cache.extend(reading.cache, row, last - row)
            key = (blocks[-1] if blocks else scope, tuple(tokens[first : last + 1]))
            self._blocks[key] = block = ReadBlock(key, cache, features[last - known].copy())
            blocks.append(block)
        self._touch(blocks)

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
