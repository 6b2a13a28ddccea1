"""Block ids and their reference counts. Knows nothing of sequences, layouts or bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headstart.errors import CacheError, OutOfBlocksError


@dataclass(frozen=True)
class Room:
    """Blocks, and slots of states."""

    blocks: int = 0
    states: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.blocks + other.blocks, self.states + other.states)

    def __sub__(self, other: Room) -> Room:
        return Room(self.blocks - other.blocks, self.states - other.states)

    def holds(self, other: Room) -> bool:
        """Whether there is as much of everything."""
        return self.blocks >= other.blocks and self.states >= other.states


class BlockAllocator:
    """Hands out block ids ``0 .. num_blocks - 1``; a block is free when nothing refers to it.

    Freed blocks are reused last-in first-out, so that a sequence that rolls back and grows again stays in warm
    memory. A free block whose contents may be asked for again is *kept*: it is handed out only when no other is
    left, the one that was kept for longest first; those of *passing* use before all others.

    Args:
        num_blocks: how many there are.
        on_evict: told of each kept block whose contents are given up.
        what: they are called in messages.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[int], None] = lambda block: None, what: str = "cache block"
    ) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._what = what
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._passing: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Free blocks with contents of use; the one used last stands last."""
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._blank) + self.num_kept

    @property
    def num_kept(self) -> int:
        """Those of the free blocks whose contents may be asked for again."""
        return len(self._kept) + len(self._passing)

    def references(self, block: int) -> int:
        """How many holders the block has."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each.

        Raises:
            OutOfBlocksError: too few are free; nothing was taken.
        """
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} {self._what}s are needed and {self.num_free} are free.")
        blocks = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each (distinct) block, each of them held or kept."""
        for block in blocks:
            if self._references[block] < 1 and block not in self._kept and block not in self._passing:
                raise CacheError(f"a free {self._what} cannot be shared.")
        for block in blocks:
            self._kept.pop(block, None)
            self._passing.pop(block, None)
            self._references[block] += 1

    def release(
        self,
        blocks: Sequence[int],
        keep: Callable[[int], bool] = lambda block: False,
        passing: Callable[[int], bool] = lambda block: False,
    ) -> None:
        """One reference less for each (distinct) block; those without any become free, kept where ``keep`` says so,
        for a while only where ``passing`` does."""
        for block in blocks:
            if self._references[block] < 1:
                raise CacheError(f"{self._what} {block} was released more often than it was taken.")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if not keep(block):
                self._blank.append(block)
            elif passing(block):
                self._passing[block] = None
            else:
                self._kept[block] = None

    def discard(self, block: int) -> None:
        """Keep a block no longer. One that is not kept stays as it is."""
        for kept in (self._passing, self._kept):
            if block in kept:
                del kept[block]
                self._blank.append(block)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Integrity: counts equal the references that ``holders`` show, and the rest is free exactly once.

        Raises:
            CacheError: naming the first block that is leaked, over-freed or aliased.
        """
        seen = Counter(block for blocks in holders for block in blocks)
        free = Counter([*self._blank, *self._passing, *self._kept])
        for block in range(self.num_blocks):
            if self._references[block] != seen[block]:
                raise CacheError(
                    f"{self._what} {block} counts {self._references[block]} references; {seen[block]} are held."
                )
            if free[block] != (1 if seen[block] == 0 else 0):
                raise CacheError(f"{self._what} {block} is held {seen[block]} times and free {free[block]} times.")

    def _evict(self) -> int:
        block, _ = (self._passing or self._kept).popitem(last=False)
        self._on_evict(block)
        return block
