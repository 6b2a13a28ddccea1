"""Encoder memories beside pages: who shares one, who waits for room, and what is left in the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from toys import ToyStorage

from headstart.errors import OutOfBlocksError
from headstart.passes.batch import EncoderInput
from headstart.passes.cache.paged import PagedCache
from headstart.passes.cache.prefix import PrefixIndex

BLOCK = 4


def source(*tokens: int) -> EncoderInput:
    return EncoderInput(tokens)


def make(num_blocks: int = 8, prefixes: PrefixIndex | None = None) -> PagedCache:
    return PagedCache(ToyStorage(num_blocks, BLOCK), prefixes)


def extend(cache: PagedCache, sequence_id: int, count: int) -> None:
    with cache.reserve({sequence_id: count}):
        cache.commit(sequence_id, range(count))


def test_equal_inputs_of_a_salt_share_blocks_until_the_last_one_leaves() -> None:
    cache = make()
    five = source(1, 2, 3, 4, 5)
    assert cache.memory_blocks_needed(five) == 2
    cache.add(0, source=five)
    assert cache.memory_blocks_needed(source(1, 2, 3, 4, 5)) == 0
    cache.add(1, source=source(1, 2, 3, 4, 5))
    assert cache.memory_of(0) is cache.memory_of(1)
    cache.add(2, "tenant", five)
    assert cache.memory_of(2) is not cache.memory_of(0)
    assert cache.allocator.num_free == 8 - 4
    cache.check()
    cache.remove(0)
    assert cache.allocator.num_free == 8 - 4
    cache.remove(1)
    cache.remove(2)
    assert cache.allocator.num_free == 8
    cache.check()


def test_a_fork_reads_the_same_memory() -> None:
    cache = make()
    cache.add(0, source=source(1, 2, 3))
    extend(cache, 0, 3)
    cache.fork(0, 1)
    assert cache.memory_of(1) is cache.memory_of(0)
    lengths, tables = cache.tables([1, 0]).memories or (None, None)
    assert lengths.tolist() == [3, 3]
    assert tables.tolist()[0] == tables.tolist()[1]
    cache.remove(0)
    cache.check()
    cache.remove(1)
    assert cache.allocator.num_free == 8


def test_tables_are_padded_and_none_where_there_is_no_encoder() -> None:
    cache = make()
    cache.add(0, source=source(*range(9)))
    cache.add(1, source=source(1))
    lengths, tables = cache.tables([0, 1]).memories or (None, None)
    assert lengths.dtype == tables.dtype == np.int32
    assert lengths.tolist() == [9, 1]
    assert tables.shape == (2, 3)
    cache.add(2)
    assert cache.tables([2]).memories is None


def test_without_room_nothing_is_changed() -> None:
    cache = make(2)
    cache.add(0, source=source(1))
    with pytest.raises(OutOfBlocksError):
        cache.add(1, source=source(*range(8)))
    assert 1 not in cache
    assert cache.allocator.num_free == 1
    cache.check()


def test_kept_memories_are_found_again_and_evicted_as_a_whole() -> None:
    cache = make(4, PrefixIndex())
    first = source(1, 2, 3, 4, 5, 6, 7)
    cache.add(0, source=first)
    memory = cache.memory_of(0)
    assert memory is not None
    memory.computed = True
    cache.remove(0)
    assert cache.allocator.num_free == 4
    assert cache.allocator.num_kept == 2
    assert cache.memory_blocks_needed(first) == 2
    cache.add(1, source=first)
    assert cache.memory_of(1) is memory
    cache.remove(1)
    cache.add(2)
    extend(cache, 2, 9)  # needs three blocks: one of the memory's
    assert cache.allocator.num_kept == 0
    cache.remove(2)
    cache.add(3, source=first)
    other = cache.memory_of(3)
    assert other is not memory
    assert other is not None
    assert not other.computed
    cache.check()


def test_what_was_never_computed_is_not_kept() -> None:
    cache = make(4, PrefixIndex())
    cache.add(0, source=source(1, 2))
    cache.remove(0)
    assert cache.allocator.num_kept == 0
    cache.check()


def test_prefixes_of_another_source_are_other_prefixes() -> None:
    cache = make(8, PrefixIndex())
    text = [1, 2, 3, 4]
    cache.add(0, source=source(9))
    extend(cache, 0, 4)
    cache.publish(0, text)
    for sequence_id, read, found in ((1, source(9), 4), (2, source(8), 0)):
        cache.add(sequence_id, source=read)
        assert cache.adopt(sequence_id, text) == found
    cache.check()


def test_features_are_compared_by_what_they_hold() -> None:
    one, same, other = (EncoderInput.of_features(np.full((2, 5), value, np.float32)) for value in (1, 1, 2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.positions == 3
    assert len({one.identity, same.identity, other.identity, source(1).identity, source(1, 2).identity}) == 4


class Storm(RuleBasedStateMachine):
    """Sequences with and without memories come, grow, fork and go."""

    @initialize(keeps=st.booleans())
    def begin(self, keeps: bool) -> None:
        self.cache = make(12, PrefixIndex() if keeps else None)
        self.next_id = 0
        self.live: dict[int, EncoderInput | None] = {}

    @rule(read=st.one_of(st.none(), st.lists(st.integers(0, 1), min_size=1, max_size=9)), salt=st.sampled_from("ab"))
    def add(self, read: list[int] | None, salt: str) -> None:
        wanted = None if read is None else source(*read)
        needed, free = self.cache.memory_blocks_needed(wanted, salt), self.cache.allocator.num_free
        if needed > free:
            with pytest.raises(OutOfBlocksError):
                self.cache.add(self.next_id, salt, wanted)
            return
        self.cache.add(self.next_id, salt, wanted)
        assert free - self.cache.allocator.num_free == needed
        self.live[self.next_id] = wanted
        self.next_id += 1

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        if self.live:
            memory = self.cache.memory_of(data.draw(st.sampled_from(sorted(self.live))))
            if memory is not None:
                memory.computed = True

    @rule(data=st.data(), count=st.integers(1, 9))
    def grow(self, data: st.DataObject, count: int) -> None:
        if not self.live:
            return
        grown = data.draw(st.sampled_from(sorted(self.live)))
        if self.cache.blocks_needed(grown, count) <= self.cache.allocator.num_free:
            extend(self.cache, grown, count)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if self.live:
            forked = data.draw(st.sampled_from(sorted(self.live)))
            self.cache.fork(forked, self.next_id)
            self.live[self.next_id] = self.live[forked]
            self.next_id += 1

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.live:
            left = data.draw(st.sampled_from(sorted(self.live)))
            self.cache.remove(left)
            del self.live[left]

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for sequence_id, read in self.live.items():
            memory = self.cache.memory_of(sequence_id)
            assert (memory.source if memory else None) == read
        if not self.live:
            assert self.cache.allocator.num_free == 12


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
