"""The paged key-value cache: which block holds which token of which sequence.

Bookkeeping only; the bytes are a ``KVStorage`` that the backend lays out and reads. A sequence's logical slot i
lives in block ``table[i // block_size]`` at offset ``i % block_size``. A pass writes the root and the tree's
nodes to the slots after the committed tokens, in row order; ``commit`` moves the accepted rows down in place.

Where layers keep states beside keys and values, a sequence holds the one that follows its tokens, and while a pass runs
one for each row that may become its last (``cache.states``).

A sequence of a model with an encoder also reads an encoder memory (``cache.encoder_memory``), in blocks of its own.

With a ``PrefixIndex``, full blocks of committed tokens are published and outlive their sequence until the memory is
needed; a sequence adopts those that hold its next tokens instead of computing them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np

from headstart.errors import CacheError, OutOfBlocksError
from headstart.passes.batch import EncoderInput, IntArray, KVStorage, PortableStorage
from headstart.passes.cache.blocks import BlockAllocator, Room
from headstart.passes.cache.encoder_memory import EncoderMemories, EncoderMemory
from headstart.passes.cache.prefix import Link, PrefixIndex
from headstart.passes.cache.prefix_files import PrefixFiles
from headstart.passes.cache.states import NO_STATE, HeldStates, Mark, StateSlots


@dataclass
class _Table:
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    reserved: int = 0
    salt: str = ""
    chain: list[Link] = field(default_factory=list)
    """[block] what the leading full blocks are known as."""
    memory: EncoderMemory | None = None
    sought: int = 0
    """Tokens up to which files were read, at a step that had time for no more; -1: there are no more."""
    held: HeldStates = field(default_factory=HeldStates)
    adapter: object | None = None


class _Reservation:
    """Ends what ``PagedCache.reserve`` begins. A class: a generator runs more code for it, in every round."""

    def __init__(self, cache: PagedCache, rows: Mapping[int, int]) -> None:
        self._cache = cache
        self._rows = rows

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for sequence_id in self._rows:
            if sequence_id in self._cache:
                self._cache.roll_back(sequence_id)


class PagedCache:
    """Sequences over shared blocks. Lengths and rows are in tokens.

    Args:
        storage: the bytes.
        prefixes: what published blocks hold; None: nothing is published.
        num_states: slots of states that the storage has; 0: the model's layers keep none.
    """

    def __init__(self, storage: KVStorage, prefixes: PrefixIndex | None = None, num_states: int = 0) -> None:
        self.storage = storage
        self.block_size = storage.block_size
        self.prefixes = prefixes
        self.allocator = BlockAllocator(storage.num_blocks, lambda block: self._evicted(block))
        self.states = StateSlots(num_states, self.block_size)
        self._memories = EncoderMemories(self.allocator, self.block_size, keeps=prefixes is not None)
        self._tables: dict[int, _Table] = {}
        self.files: PrefixFiles | None = None
        """Where published blocks are found, and left, too."""

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._tables

    @property
    def has_states(self) -> bool:
        return self.states.num_states > 0

    @property
    def size(self) -> Room:
        """All that there is."""
        return Room(self.allocator.num_blocks, self.states.num_states)

    @property
    def free(self) -> Room:
        """What is free, or is kept and can be given up."""
        return Room(self.allocator.num_free, self.states.allocator.num_free)

    @property
    def num_free_tokens(self) -> int:
        return self.allocator.num_free * self.block_size

    def add(
        self, sequence_id: int, salt: str = "", source: EncoderInput | None = None, adapter: object | None = None
    ) -> None:
        """Know a new, empty sequence. It shares published blocks, and the encoder memory of its ``source``, with
        sequences of the same salt only. Those of different adapters (``Adapter.compiled``) have different ones.

        Raises:
            OutOfBlocksError: there is no room for the memory; nothing was changed.
        """
        if sequence_id in self._tables:
            raise CacheError(f"sequence {sequence_id} is in the cache already.")
        if source is None:
            self._tables[sequence_id] = _Table(salt=salt, adapter=adapter)
        else:
            memory = self._memories.take(source, salt)
            # What tokens become depends on what the encoder read.
            self._tables[sequence_id] = _Table(salt=f"{salt}\0{source.identity}", memory=memory)

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence and release its blocks; what it published stays until the memory is needed."""
        table = self._table(sequence_id)
        self.states.leave(table.held)
        self._release(table.blocks)
        if table.memory is not None:
            self._memories.release(table.memory)
        del self._tables[sequence_id]

    def memory_blocks_needed(self, source: EncoderInput | None, salt: str = "") -> int:
        """How many free blocks ``add`` would take."""
        return 0 if source is None else self._memories.blocks_needed(source, salt)

    def memory_of(self, sequence_id: int) -> EncoderMemory | None:
        """The encoder memory that a sequence reads; None: it has none."""
        return self._table(sequence_id).memory

    def memory_tables(self, sequence_ids: Sequence[int]) -> tuple[IntArray, IntArray] | None:
        """int32 [sequence] positions of each sequence's encoder memory, and [sequence, block] its block ids, padded
        with 0; None where a sequence has none."""
        memories = [self._table(sequence_id).memory for sequence_id in sequence_ids]
        found = [memory for memory in memories if memory is not None]
        if len(found) < len(memories) or not found:
            return None
        lengths = np.array([memory.source.positions for memory in found], dtype=np.int32)
        return lengths, _padded([memory.blocks for memory in found])

    def adopt(self, sequence_id: int, tokens: Sequence[int]) -> int:
        """Take the published blocks that hold the sequence's next tokens, instead of computing them; where there are
        states, up to the last one that is kept. Of those on disk some are read at once: see ``reads_on``.

        Args:
            tokens: those of the sequence that it wants in the cache, from its first one.

        Returns:
            How many tokens were found.
        """
        table = self._table(sequence_id)
        if self.prefixes is None or table.reserved or table.length != len(table.chain) * self.block_size:
            table.sought = -1
            return 0
        links = self._known_links(table, tokens)
        self.allocator.share([link.block for link in links])
        links += self._read_links(table, links, tokens)
        if self.has_states:
            last = self.block_size - 1
            ends = [self.states.after(link.block * self.block_size + last) for link in links]
            while ends and ends[-1] is None:
                ends.pop()
            self._release([link.block for link in links[len(ends) :]])
            links = links[: len(ends)]
            if ends and ends[-1] is not None:
                self.states.share(table.held, ends[-1])
        table.blocks += [link.block for link in links]
        table.chain += links
        table.length += len(links) * self.block_size
        return len(links) * self.block_size

    def reads_on(self, sequence_id: int) -> bool:
        """Whether ``adopt`` has left blocks on disk for the next step."""
        return self._table(sequence_id).sought > 0

    def _read_links(self, table: _Table, known: Sequence[Link], tokens: Sequence[int]) -> list[Link]:
        """Blocks from files that follow those that are known, each with one reference; as many as there is time for."""
        links: list[Link] = []
        if self.files is None or self.prefixes is None:
            return links
        storage, size = cast(PortableStorage, self.storage), self.block_size
        end = [self.prefixes.root(table.salt), *table.chain, *known][-1]
        first = table.length + len(known) * size
        # What was read, and given up since, is not read again and again.
        while 0 <= table.sought <= first <= len(tokens) - size and self.allocator.num_free > len(self._tables):
            after = tokens[first : first + size]
            found = self.files.read(self.prefixes.digest(end, after), after, first // size)
            if found is None:
                break
            (block,) = self._new_blocks(1)
            slot = None
            if len(found) > storage.block_nbytes and self.states.allocator.num_free > len(self._tables):
                slot = self.states.keep(block * size + size - 1)
            storage.write_block(block, found, slot)
            links.append(end := self._insert(end, after, block))
            first += size
            if self.files.read_bytes >= self.files.step_bytes:
                table.sought = first
                return links
        table.sought = -1
        return links

    def _insert(self, end: Link, tokens: Sequence[int], block: int) -> Link:
        """Publish a full block; the chain's new end."""
        assert self.prefixes is not None
        end, forgotten = self.prefixes.insert(end, tokens, block)
        if forgotten is not None:
            self._forget(forgotten)
            self.states.forget_blocks([forgotten])
            self.allocator.discard(forgotten)
        return end

    def _known_links(self, table: _Table, tokens: Sequence[int]) -> list[Link]:
        assert self.prefixes is not None
        links: list[Link] = []
        end = table.chain[-1] if table.chain else self.prefixes.root(table.salt)
        for first in range(table.length, len(tokens) - self.block_size + 1, self.block_size):
            link = self.prefixes.find(end, tokens[first : first + self.block_size])
            if link is None:
                break
            links.append(end := link)
        return links

    def publish(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Let others adopt the sequence's full blocks.

        Args:
            tokens: the sequence's, from its first one; those beyond its cached length are not looked at.
        """
        table = self._table(sequence_id)
        if self.prefixes is None or table.length // self.block_size == len(table.chain):
            return
        end = table.chain[-1] if table.chain else self.prefixes.root(table.salt)
        for index in range(len(table.chain), table.length // self.block_size):
            first = index * self.block_size
            end = self._insert(end, tokens[first : first + self.block_size], table.blocks[index])
            table.chain.append(end)
            if self.files is not None and end.block == table.blocks[index]:
                self.files.unsaved[end.block] = end
            if end.block != table.blocks[index]:
                size = self.block_size
                self.states.move(table.blocks[index] * size + size - 1, end.block * size + size - 1)

    def next_block(self, sequence_id: int, tokens: Sequence[int]) -> tuple[object, ...] | None:
        """Equal for sequences that would compute the very same block next; None where that will not be published."""
        table = self._table(sequence_id)
        after = tokens[table.length : table.length + self.block_size]
        if self.prefixes is None or len(after) < self.block_size or table.length % self.block_size:
            return None
        return (table.salt, id(table.chain[-1]) if table.chain else 0, *after)

    def length(self, sequence_id: int) -> int:
        """Committed tokens of the sequence in the cache."""
        return self._table(sequence_id).length

    def blocks_needed(self, sequence_id: int, rows: int) -> int:
        """How many free blocks ``reserve`` would take for this many rows."""
        table = self._table(sequence_id)
        grown = -(-(table.length + rows) // self.block_size) - len(table.blocks)
        return max(grown, 0) + (rows > 0 and self._tail_is_shared(table))

    def needs(self, sequence_id: int, rows: int, final: bool = False, states: int | None = None) -> Room:
        """What ``reserve`` would take for this many rows; ``final``, ``states``: as there."""
        if states is None:
            states = min(rows, 1) if final else rows
        return Room(self.blocks_needed(sequence_id, rows), states if self.has_states else 0)

    def reserve(
        self, rows: Mapping[int, int], final: Container[int] = (), states: Mapping[int, int] | None = None
    ) -> AbstractContextManager[None]:
        """Room for ``rows[id]`` rows after each sequence's tokens, until the context that is returned ends.

        What ``commit`` did not take is rolled back at the end, also when the pass fails.

        Args:
            final: sequences whose rows are committed all, or none: no state is wanted after most of them.
            states: how many slots of states the rows of each sequence have together; ``place_states`` says which has
                which. None: each row has one.

        Raises:
            OutOfBlocksError: there is no room for all of them; nothing was changed.
        """
        needed, free, pools = Room(), self.free, states or {}
        for sequence_id, count in rows.items():
            needed += self.needs(sequence_id, count, sequence_id in final, pools.get(sequence_id))
        if needed.blocks > free.blocks:
            raise OutOfBlocksError(f"{needed.blocks} cache blocks are needed and {free.blocks} are free.")
        if needed.states > free.states:
            raise OutOfBlocksError(f"{needed.states} slots of states are needed and {free.states} are free.")
        for sequence_id, count in rows.items():
            table = self._table(sequence_id)
            if count and table.length % self.block_size:
                if self._tail_is_shared(table):
                    self._own_tail(table)
                self._forget(table.blocks[-1])
                first = table.blocks[-1] * self.block_size
                self.states.forget_tokens(range(first + table.length % self.block_size, first + self.block_size))
            table.blocks += self._new_blocks(self.blocks_needed(sequence_id, count))
            table.reserved = count
            if not self.has_states:
                continue
            if sequence_id in pools:
                table.held.pending = [NO_STATE] * count
                table.held.pool = self.states.allocate(pools[sequence_id], final=False)
            else:
                table.held.pending = self.states.allocate(count, sequence_id in final)
        if self.has_states and self.prefixes is not None:
            for sequence_id, count in rows.items():
                table = self._table(sequence_id)
                if sequence_id in pools:
                    ends = (table.length + count) // self.block_size - table.length // self.block_size
                    spare = min(ends, self.states.allocator.num_free)
                    table.held.pool += self.states.allocate(spare, final=False)
                else:
                    self.states.allocate_spare(table.held, table.length, count)
        return _Reservation(self, rows)

    def commit(self, sequence_id: int, rows: Sequence[int]) -> None:
        """Keep these reserved rows (ascending offsets, e.g. root and accepted path) as the next tokens."""
        table = self._table(sequence_id)
        if any([b <= a for a, b in pairwise(rows)]) or (rows and not 0 <= rows[0] <= rows[-1] < table.reserved):
            raise CacheError(f"rows {list(rows)} are not ascending offsets below the {table.reserved} reserved ones.")
        moved = [place for place, row in enumerate(rows) if row != place]
        if moved:
            self.storage.move(self._slots(table, [rows[place] for place in moved]), self._slots(table, moved))
        if self.has_states and rows:
            self.states.commit(table.held, rows, self._slots(table, range(len(rows))))
        table.length += len(rows)
        table.reserved = 0

    def place_states(self, sequence_id: int, after: Sequence[int]) -> None:
        """Say which slot of ``state_pools`` holds the state after each reserved row; ``NO_STATE``: none does."""
        self.states.place(self._table(sequence_id).held, after)

    def last_state(self, sequence_id: int, rows: int) -> int:
        """How many of the first ``rows`` reserved rows can be committed: up to the last with a state after it."""
        pending = self._table(sequence_id).held.pending
        while self.has_states and rows and pending[rows - 1] == NO_STATE:
            rows -= 1
        return rows

    def take(self, sequence_id: int, source: int, rows: Sequence[int]) -> None:
        """Copy reserved rows of ``source`` (ascending offsets) as the next tokens of a sequence that was forked off it.

        Before ``source`` commits any itself. Needs ``blocks_of_fork`` free blocks.
        """
        table, origin = self._table(sequence_id), self._table(source)
        if table.length != origin.length or (rows and not 0 <= rows[0] <= rows[-1] < origin.reserved):
            raise CacheError(f"rows {list(rows)} of sequence {source} do not continue sequence {sequence_id}.")
        if rows and self._tail_is_shared(table):
            self._own_tail(table)
        table.blocks += self._new_blocks(self.blocks_needed(sequence_id, len(rows)))
        self.storage.move(self._slots(origin, rows), self._slots(table, range(len(rows))))
        if self.has_states and rows:
            self.states.share(table.held, origin.held.pending[rows[-1]])
        table.length += len(rows)

    def blocks_of_fork(self, sequence_id: int, rows: int) -> int:
        """How many free blocks a fork that takes so many rows would need."""
        length = self._table(sequence_id).length
        return -(-(length % self.block_size + rows) // self.block_size)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Roll back to ``length`` tokens, or where there are states to the last one that is kept up to there.

        Blocks that start at or beyond it are freed, the partial last one stays.

        Returns:
            What the length is now.
        """
        table = self._table(sequence_id)
        if not 0 <= length <= table.length:
            raise CacheError(f"length {length} is outside the sequence's {table.length} cached tokens.")
        if self.has_states and length < table.length:
            length = self.states.go_back(table.held, self._slots(table, range(-table.length, length - table.length)))
        self._cut(table, length)
        return length

    def roll_back(self, sequence_id: int) -> None:
        """Give up what is reserved."""
        table = self._table(sequence_id)
        self._cut(table, table.length)

    def mark(self, sequence_id: int) -> Mark:
        """Where a sequence stands now, to return to it. Every mark is given back to ``return_to``, in the end."""
        table = self._table(sequence_id)
        return Mark(table.length, self.states.fork(table.held))

    def return_to(self, sequence_id: int, mark: Mark) -> None:
        """Roll back to a mark, exactly. The sequence has only grown since."""
        table = self._table(sequence_id)
        self.states.replace(table.held, mark.held)
        self._cut(table, mark.length)

    def _cut(self, table: _Table, length: int) -> None:
        self.states.drop_pending(table.held)
        keep = -(-length // self.block_size)
        self._release(table.blocks[keep:])
        del table.blocks[keep:]
        del table.chain[length // self.block_size :]
        table.length = length
        table.reserved = 0

    def fork(self, source: int, target: int) -> None:
        """``target`` starts as a copy of ``source`` that shares its blocks; the partial last one is copied on write."""
        parent = self._table(source)
        self.add(target)
        if parent.memory is not None:
            self._memories.share(parent.memory)
        keep = -(-parent.length // self.block_size)
        self.allocator.share(parent.blocks[:keep])
        self._tables[target] = _Table(
            parent.blocks[:keep],
            parent.length,
            salt=parent.salt,
            chain=parent.chain.copy(),
            memory=parent.memory,
            held=self.states.fork(parent.held),
            adapter=parent.adapter,
        )

    def adapters(self, sequence_ids: Sequence[int]) -> tuple[object | None, ...] | None:
        """As ``PassBatch.adapters``."""
        found = tuple([self._table(sequence_id).adapter for sequence_id in sequence_ids])
        return found if any(found) else None

    def block_tables(self, sequence_ids: Sequence[int]) -> IntArray:
        """int32 [sequence, block]: block ids of each sequence, padded with 0."""
        return _padded([self._table(sequence_id).blocks for sequence_id in sequence_ids])

    def state_tables(self, sequence_ids: Sequence[int], rows: Sequence[int]) -> tuple[IntArray, IntArray] | None:
        """int32 [sequence] the slot of the state that each sequence stands at, and [row] those of the states after the
        first ``rows`` reserved rows of each (``NO_STATE``: none); None where the model has no states."""
        if not self.has_states:
            return None
        tables = [self._table(sequence_id) for sequence_id in sequence_ids]
        after = [slot for table, count in zip(tables, rows, strict=True) for slot in table.held.pending[:count]]
        return np.array([table.held.current for table in tables], dtype=np.int32), np.array(after, dtype=np.int32)

    def state_pools(self, sequence_ids: Sequence[int]) -> tuple[list[int], list[list[int]]] | None:
        """[sequence] the slot of the state that each sequence stands at, and the slots that its reserved rows have
        together; None where the model has no states."""
        if not self.has_states:
            return None
        held = [self._table(sequence_id).held for sequence_id in sequence_ids]
        return [each.current for each in held], [each.pool for each in held]

    def check(self, marks: Sequence[Mark] = ()) -> None:
        """Integrity of blocks, states and lengths. ``marks``: those that have not been returned to.

        Raises:
            CacheError: naming the first fault.
        """
        memories = [memory for memory in self._memories if memory.users]
        self.allocator.check([*(table.blocks for table in self._tables.values()), *(each.blocks for each in memories)])
        self.states.check([table.held for table in self._tables.values()] + [mark.held for mark in marks])
        for memory in memories:
            users = sum(table.memory is memory for table in self._tables.values())
            if memory.users != users:
                raise CacheError(f"an encoder memory counts {memory.users} sequences; {users} read it.")
        for sequence_id, table in self._tables.items():
            if len(table.blocks) != -(-(table.length + table.reserved) // self.block_size):
                raise CacheError(f"sequence {sequence_id} holds {len(table.blocks)} blocks for {table}.")
            if self.has_states and table.held.stands != (table.length > 0):
                raise CacheError(f"sequence {sequence_id} has {table.length} tokens and {table.held}.")

    def _release(self, blocks: Sequence[int]) -> None:
        """The last block first: what others may share least is the first to be given up."""
        prefixes, allocator = self.prefixes, self.allocator
        if prefixes is None:
            allocator.release(blocks[::-1])
        else:
            allocator.release(blocks[::-1], prefixes.__contains__)
        if self.has_states:
            gone = [block for block in blocks if not allocator.references(block)]
            self.states.forget_blocks(gone if prefixes is None else [block for block in gone if block not in prefixes])

    def _new_blocks(self, count: int) -> list[int]:
        blocks = self.allocator.allocate(count)
        self.states.forget_blocks(blocks)
        return blocks

    def _evicted(self, block: int) -> None:
        """A kept block is handed out again."""
        self._forget(block)
        self.states.forget_blocks([block])
        self._memories.forget(block)

    def _forget(self, block: int) -> None:
        if self.prefixes is not None:
            self.prefixes.forget(block)
        if self.files is not None:
            self.files.unsaved.pop(block, None)

    def _table(self, sequence_id: int) -> _Table:
        try:
            return self._tables[sequence_id]
        except KeyError:
            raise CacheError(f"sequence {sequence_id} is not in the cache.") from None

    def _slots(self, table: _Table, rows: Sequence[int]) -> list[int]:
        """[row] physical slots of rows after the committed tokens."""
        blocks, size = table.blocks, self.block_size
        return [blocks[slot // size] * size + slot % size for slot in [table.length + row for row in rows]]

    def _tail_is_shared(self, table: _Table) -> bool:
        return table.length % self.block_size != 0 and self.allocator.references(table.blocks[-1]) > 1

    def _own_tail(self, table: _Table) -> None:
        (copy,) = self._new_blocks(1)
        self.storage.copy_blocks([table.blocks[-1]], [copy])
        self._release([table.blocks[-1]])
        table.blocks[-1] = copy


def _padded(tables: Sequence[Sequence[int]]) -> IntArray:
    """int32 [table, block], padded with 0."""
    if len(tables) == 1:
        return np.array(tables, dtype=np.int32)
    padded = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
    for row, blocks in zip(padded, tables, strict=True):
        row[: len(blocks)] = blocks
    return padded
