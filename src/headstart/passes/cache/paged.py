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
from itertools import pairwise

from headstart.errors import CacheError, OutOfBlocksError
from headstart.passes.batch import EncoderInput, KVStorage
from headstart.passes.cache.blocks import Room
from headstart.passes.cache.encoder_memory import EncoderMemory
from headstart.passes.cache.pool import BlockPool
from headstart.passes.cache.prefix import Link, PrefixIndex
from headstart.passes.cache.states import NO_STATE, Mark
from headstart.passes.cache.tables import PassTables, SequenceTable


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
    """Sequences over the blocks of a ``BlockPool``, made of the same arguments. Lengths and rows are in tokens."""

    def __init__(self, storage: KVStorage, prefixes: PrefixIndex | None = None, num_states: int = 0) -> None:
        self.storage = storage
        self.block_size = storage.block_size
        self.pool = BlockPool(storage, prefixes, num_states)
        self.allocator, self.states = self.pool.allocator, self.pool.states
        self.has_states = num_states > 0
        self._tables: dict[int, SequenceTable] = {}

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._tables

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
            self._tables[sequence_id] = SequenceTable(salt=salt, adapter=adapter)
        else:
            memory = self.pool.memories.take(source, salt)
            # What tokens become depends on what the encoder read.
            self._tables[sequence_id] = SequenceTable(salt=f"{salt}\0{source.identity}", memory=memory)

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence and release its blocks; what it published stays until the memory is needed."""
        table = self._table(sequence_id)
        self.states.leave(table.held)
        self.pool.release(table.blocks)
        if table.memory is not None:
            self.pool.memories.release(table.memory)
        del self._tables[sequence_id]

    def memory_blocks_needed(self, source: EncoderInput | None, salt: str = "") -> int:
        """How many free blocks ``add`` would take."""
        return 0 if source is None else self.pool.memories.blocks_needed(source, salt)

    def memory_of(self, sequence_id: int) -> EncoderMemory | None:
        """The encoder memory that a sequence reads; None: it has none."""
        return self._table(sequence_id).memory

    def adopt(self, sequence_id: int, tokens: Sequence[int]) -> int:
        """Take the published blocks that hold the sequence's next tokens, instead of computing them; where there are
        states, up to the last one that is kept. Of those on disk some are read at once: see ``reads_on``.

        Args:
            tokens: those of the sequence that it wants in the cache, from its first one.

        Returns:
            How many tokens were found.
        """
        table = self._table(sequence_id)
        if self.pool.prefixes is None or table.reserved or table.length != len(table.chain) * self.block_size:
            table.sought = -1
            return 0
        end = self._end(table)
        links = self.pool.find(end, tokens, table.length)
        first = table.length + len(links) * self.block_size
        end = links[-1] if links else end
        # What was read, and given up since, is not read again and again.
        reads = 0 <= table.sought <= first
        read, more = self.pool.read(end, tokens, first, spare=len(self._tables)) if reads else ([], False)
        links += read
        table.sought = first + len(read) * self.block_size if more else -1
        if self.has_states:
            ends = [self.states.after_block(link.block) for link in links]
            while ends and ends[-1] is None:
                ends.pop()
            self.pool.release([link.block for link in links[len(ends) :]])
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

    def publish(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Let others adopt the sequence's full blocks.

        Args:
            tokens: the sequence's, from its first one; those beyond its cached length are not looked at.
        """
        table = self._table(sequence_id)
        if self.pool.prefixes is None or table.length // self.block_size == len(table.chain):
            return
        end = self._end(table)
        for index in range(len(table.chain), table.length // self.block_size):
            first = index * self.block_size
            end = self.pool.publish(end, tokens[first : first + self.block_size], table.blocks[index])
            table.chain.append(end)

    def next_block(self, sequence_id: int, tokens: Sequence[int]) -> tuple[object, ...] | None:
        """Equal for sequences that would compute the very same block next; None where that will not be published."""
        table = self._table(sequence_id)
        after = tokens[table.length : table.length + self.block_size]
        if self.pool.prefixes is None or len(after) < self.block_size or table.length % self.block_size:
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
        free, pools = self.free, states or {}
        needs = [self.needs(each, count, each in final, pools.get(each)) for each, count in rows.items()]
        blocks, slots = sum([need.blocks for need in needs]), sum([need.states for need in needs])
        if blocks > free.blocks:
            raise OutOfBlocksError(f"{blocks} cache blocks are needed and {free.blocks} are free.")
        if slots > free.states:
            raise OutOfBlocksError(f"{slots} slots of states are needed and {free.states} are free.")
        for sequence_id, count in rows.items():
            table = self._table(sequence_id)
            if count and table.length % self.block_size:
                if self._tail_is_shared(table):
                    self._own_tail(table)
                self.pool.forget(table.blocks[-1])
                first = table.blocks[-1] * self.block_size
                self.states.forget_tokens(range(first + table.length % self.block_size, first + self.block_size))
            table.blocks += self.pool.take(self.blocks_needed(sequence_id, count))
            table.reserved = count
            if not self.has_states:
                continue
            if sequence_id in pools:
                table.held.pending = [NO_STATE] * count
                table.held.pool = self.states.allocate(pools[sequence_id], final=False)
            else:
                table.held.pending = self.states.allocate(count, sequence_id in final)
        if self.has_states and self.pool.prefixes is not None:
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
        table.blocks += self.pool.take(self.blocks_needed(sequence_id, len(rows)))
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

    def _cut(self, table: SequenceTable, length: int) -> None:
        self.states.drop_pending(table.held)
        keep = -(-length // self.block_size)
        self.pool.release(table.blocks[keep:])
        del table.blocks[keep:]
        del table.chain[length // self.block_size :]
        table.length = length
        table.reserved = 0

    def fork(self, source: int, target: int) -> None:
        """``target`` starts as a copy of ``source`` that shares its blocks; the partial last one is copied on write."""
        parent = self._table(source)
        self.add(target)
        if parent.memory is not None:
            self.pool.memories.share(parent.memory)
        keep = -(-parent.length // self.block_size)
        self.allocator.share(parent.blocks[:keep])
        self._tables[target] = SequenceTable(
            parent.blocks[:keep],
            parent.length,
            salt=parent.salt,
            chain=parent.chain.copy(),
            memory=parent.memory,
            held=self.states.fork(parent.held),
            adapter=parent.adapter,
        )

    def tables(self, sequence_ids: Sequence[int]) -> PassTables:
        """Where sequences stand, as a pass is told."""
        return PassTables([self._table(sequence_id) for sequence_id in sequence_ids], self.has_states)

    def check(self, marks: Sequence[Mark] = ()) -> None:
        """Integrity of blocks, states and lengths. ``marks``: those that have not been returned to.

        Raises:
            CacheError: naming the first fault.
        """
        memories = [memory for memory in self.pool.memories if memory.users]
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

    def _table(self, sequence_id: int) -> SequenceTable:
        try:
            return self._tables[sequence_id]
        except KeyError:
            raise CacheError(f"sequence {sequence_id} is not in the cache.") from None

    def _end(self, table: SequenceTable) -> Link:
        """Where a sequence's published chain ends."""
        assert self.pool.prefixes is not None
        return table.chain[-1] if table.chain else self.pool.prefixes.root(table.salt)

    def _slots(self, table: SequenceTable, rows: Sequence[int]) -> list[int]:
        """[row] physical slots of rows after the committed tokens."""
        blocks, size = table.blocks, self.block_size
        return [blocks[slot // size] * size + slot % size for slot in [table.length + row for row in rows]]

    def _tail_is_shared(self, table: SequenceTable) -> bool:
        return table.length % self.block_size != 0 and self.allocator.references(table.blocks[-1]) > 1

    def _own_tail(self, table: SequenceTable) -> None:
        (copy,) = self.pool.take(1)
        self.storage.copy_blocks([table.blocks[-1]], [copy])
        self.pool.release([table.blocks[-1]])
        table.blocks[-1] = copy
