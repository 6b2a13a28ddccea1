from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toys import ToyStorage

from headstart.errors import CacheError, OutOfBlocksError
from headstart.passes.cache.blocks import BlockAllocator
from headstart.passes.cache.paged import PagedCache

BLOCK = 4


def make(num_blocks: int = 8) -> PagedCache:
    return PagedCache(ToyStorage(num_blocks, BLOCK))


def write(cache: PagedCache, sequence_id: int, values: list[int]) -> None:
    """What a pass does: write values to the reserved slots behind the committed tokens."""
    (table,) = cache.tables([sequence_id]).blocks
    for offset, value in enumerate(values):
        logical = cache.length(sequence_id) + offset
        cache.storage.tokens[table[logical // BLOCK] * BLOCK + logical % BLOCK] = value


def read(cache: PagedCache, sequence_id: int) -> list[int]:
    (table,) = cache.tables([sequence_id]).blocks
    return [int(cache.storage.tokens[table[i // BLOCK] * BLOCK + i % BLOCK]) for i in range(cache.length(sequence_id))]


def extend(cache: PagedCache, sequence_id: int, values: list[int], keep: list[int] | None = None) -> None:
    with cache.reserve({sequence_id: len(values)}):
        write(cache, sequence_id, values)
        cache.commit(sequence_id, list(range(len(values))) if keep is None else keep)


def test_commit_gathers_the_accepted_path_and_frees_the_rest() -> None:
    cache = make()
    cache.add(7)
    extend(cache, 7, [10, 11, 12])
    extend(cache, 7, [20, 21, 22, 23, 24, 25, 26], keep=[0, 2, 5])
    assert read(cache, 7) == [10, 11, 12, 20, 22, 25]
    assert cache.allocator.num_free == 8 - 2
    cache.check()


def test_what_was_not_committed_is_rolled_back_even_after_an_error() -> None:
    cache = make()
    cache.add(0)
    extend(cache, 0, [1, 2])
    with pytest.raises(RuntimeError), cache.reserve({0: 9}):
        raise RuntimeError
    assert cache.allocator.num_free == 7
    assert read(cache, 0) == [1, 2]
    cache.check()


def test_reserve_takes_all_or_nothing() -> None:
    cache = make(num_blocks=3)
    cache.add(0)
    cache.add(1)
    with pytest.raises(OutOfBlocksError), cache.reserve({0: 8, 1: 8}):
        pass
    assert cache.allocator.num_free == 3
    cache.check()


@pytest.mark.parametrize("length", [3, 4, 6])
def test_forks_take_rows_of_their_own(length: int) -> None:
    cache = make()
    cache.add(0)
    before = list(range(length))
    extend(cache, 0, before)
    with cache.reserve({0: 6}):
        write(cache, 0, [20, 21, 22, 23, 24, 25])
        free = cache.allocator.num_free
        for fork, rows in ((1, [0, 2, 4]), (2, [0])):
            cache.fork(0, fork)
            cache.take(fork, 0, rows)
        assert free - cache.allocator.num_free == cache.blocks_of_fork(0, 3) + cache.blocks_of_fork(0, 1)
        with pytest.raises(CacheError, match="do not continue"):
            cache.take(1, 0, [1])
        cache.commit(0, [0, 1, 5])
    assert [read(cache, id)[length:] for id in (0, 1, 2)] == [[20, 21, 25], [20, 22, 24], [20]]
    assert all(read(cache, id)[:length] == before for id in (0, 1, 2))
    cache.check()
    for id in (0, 1, 2):
        cache.remove(id)
    assert cache.allocator.num_free == 8
    cache.check()


def test_truncate_keeps_the_partial_last_block() -> None:
    cache = make()
    cache.add(0)
    extend(cache, 0, list(range(10)))
    cache.truncate(0, 5)
    assert read(cache, 0) == [0, 1, 2, 3, 4]
    assert cache.allocator.num_free == 8 - 2
    cache.truncate(0, 4)
    assert cache.allocator.num_free == 8 - 1
    cache.truncate(0, 0)
    assert cache.allocator.num_free == 8
    with pytest.raises(CacheError):
        cache.truncate(0, 1)


def test_a_fork_shares_blocks_and_copies_the_partial_one_on_write() -> None:
    cache = make()
    cache.add(0)
    extend(cache, 0, [1, 2, 3, 4, 5])
    cache.fork(0, 1)
    assert cache.allocator.num_free == 8 - 2
    extend(cache, 1, [60])
    extend(cache, 0, [70])
    assert read(cache, 0) == [1, 2, 3, 4, 5, 70]
    assert read(cache, 1) == [1, 2, 3, 4, 5, 60]
    assert cache.allocator.num_free == 8 - 3
    cache.remove(0)
    assert read(cache, 1) == [1, 2, 3, 4, 5, 60]
    cache.remove(1)
    assert cache.allocator.num_free == 8
    cache.check()


def test_bad_calls_are_refused() -> None:
    cache = make()
    cache.add(0)
    with pytest.raises(CacheError):
        cache.add(0)
    with pytest.raises(CacheError):
        cache.length(5)
    with cache.reserve({0: 3}):
        for rows in ([1, 0], [0, 0], [3], [-1]):
            with pytest.raises(CacheError):
                cache.commit(0, rows)
    allocator = BlockAllocator(2)
    with pytest.raises(CacheError):
        allocator.release([0])
    with pytest.raises(CacheError):
        allocator.share([0])


def test_the_integrity_check_sees_leaks_and_aliases() -> None:
    allocator = BlockAllocator(3)
    blocks = allocator.allocate(2)
    allocator.check([blocks])
    for holders in ([], [blocks, blocks], [blocks[:1]]):
        with pytest.raises(CacheError):
            allocator.check(holders)


class CacheStorm(RuleBasedStateMachine):
    """Random histories against a model that keeps plain lists."""

    @initialize()
    def start(self) -> None:
        self.cache = make(num_blocks=12)
        self.texts: dict[int, list[int]] = {}
        self.next_id = 0
        self.next_value = 0

    def _values(self, count: int) -> list[int]:
        self.next_value += count
        return list(range(self.next_value - count, self.next_value))

    @rule()
    def add(self) -> None:
        self.cache.add(self.next_id)
        self.texts[self.next_id] = []
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), count=st.integers(1, 11))
    def round(self, data: st.DataObject, count: int) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        keep = data.draw(st.lists(st.integers(0, count - 1), unique=True).map(sorted))
        values = self._values(count)
        free = self.cache.allocator.num_free
        try:
            extend(self.cache, sequence_id, values, keep)
        except OutOfBlocksError:
            assert self.cache.allocator.num_free == free
        else:
            self.texts[sequence_id] += [values[row] for row in keep]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        length = data.draw(st.integers(0, len(self.texts[sequence_id])))
        self.cache.truncate(sequence_id, length)
        del self.texts[sequence_id][length:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.fork(source, self.next_id)
        self.texts[self.next_id] = list(self.texts[source])
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.remove(sequence_id)
        del self.texts[sequence_id]

    @invariant()
    def every_text_is_intact(self) -> None:
        self.cache.check()
        for sequence_id, text in self.texts.items():
            assert read(self.cache, sequence_id) == text

    def teardown(self) -> None:
        for sequence_id in list(getattr(self, "texts", {})):
            self.cache.remove(sequence_id)
            assert np.all(self.cache.allocator.num_free <= 12)
        if self.next_id:
            assert self.cache.allocator.num_free == 12


TestCacheStorm = CacheStorm.TestCase
TestCacheStorm.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
