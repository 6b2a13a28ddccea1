from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toys import ToyStorage

from headstart.errors import CacheError, OutOfBlocksError
from headstart.passes.cache.paged import PagedCache
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.cache.states import Mark

BLOCK = 4


def make(num_blocks: int = 12, num_states: int = 10, prefixes: bool = False) -> PagedCache:
    storage = ToyStorage(num_blocks, BLOCK, num_states)
    return PagedCache(storage, PrefixIndex("toy") if prefixes else None, num_states)


def state_of(cache: PagedCache, sequence_id: int) -> tuple[int, ...]:
    """The text that a sequence's state has read."""
    tables = cache.tables([sequence_id]).states([0])
    assert tables is not None
    slot = int(tables[0][0])
    return () if slot < 0 else cache.storage.states[slot]  # type: ignore[attr-defined]


def compute(cache: PagedCache, sequence_id: int, tokens: list[int], parents: list[int] | None = None) -> None:
    """What a pass does: states after rows, where they are wanted."""
    tables = cache.tables([sequence_id]).states([len(tokens)])
    assert tables is not None
    paths: list[tuple[int, ...]] = []
    before = state_of(cache, sequence_id)
    for row, token in enumerate(tokens):
        parent = row - 1 if parents is None else parents[row]
        paths.append((*(paths[parent] if parent >= 0 else before), token))
    for path, slot in zip(paths, tables[1].tolist(), strict=True):
        if slot >= 0:
            cache.storage.states[slot] = path  # type: ignore[attr-defined]


def read(cache: PagedCache, sequence_id: int, tokens: list[int]) -> None:
    """A prompt's chunk."""
    with cache.reserve({sequence_id: len(tokens)}, final={sequence_id}):
        compute(cache, sequence_id, tokens)
        cache.commit(sequence_id, range(len(tokens)))


def test_a_round_leaves_the_state_after_its_last_kept_row() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2, 3])
    assert cache.free.states == 10 - 1
    with cache.reserve({0: 4}):
        assert cache.free.states == 10 - 5
        compute(cache, 0, [4, 5, 6, 7], parents=[-1, 0, 0, 2])
        cache.commit(0, [0, 2, 3])
    assert state_of(cache, 0) == (1, 2, 3, 4, 6, 7)
    assert cache.free.states == 10 - 1
    cache.check()


def several_rounds(cache: PagedCache, sequence_id: int, tokens: list[int], rows: list[int]) -> None:
    """What a stretch does: states after some rows of a chain, in slots of its choice."""
    pools = cache.tables([sequence_id]).state_pools
    assert pools is not None
    before, after = state_of(cache, sequence_id), [-1] * len(tokens)
    for row, slot in zip(rows, reversed(pools[1][0]), strict=False):
        after[row] = slot
        cache.storage.states[slot] = (*before, *tokens[: row + 1])  # type: ignore[attr-defined]
    cache.place_states(sequence_id, after)


def test_rounds_at_once_say_afterwards_where_states_are() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2, 3])
    with cache.reserve({0: 9}, states={0: 4}):
        assert cache.free.states == 10 - 5
        several_rounds(cache, 0, [4, 5, 6, 7, 8, 9], [1, 4])
        assert [cache.last_state(0, rows) for rows in (6, 5, 4, 2, 1)] == [5, 5, 2, 2, 0]
        cache.commit(0, range(5))
    assert state_of(cache, 0) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert cache.truncate(0, 7) == 5
    assert state_of(cache, 0) == (1, 2, 3, 4, 5)
    cache.check()
    with pytest.raises(OutOfBlocksError, match="slots of states"):
        cache.reserve({0: 2}, states={0: 11})
    cache.remove(0)
    assert cache.free == cache.size


def test_a_pass_that_fails_leaves_the_state_before_it() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2])
    with pytest.raises(RuntimeError), cache.reserve({0: 3}):
        raise RuntimeError
    assert state_of(cache, 0) == (1, 2)
    assert cache.free.states == 10 - 1
    cache.check()


def test_a_round_needs_a_slot_for_each_row_and_a_chunk_needs_one() -> None:
    cache = make(num_states=4)
    cache.add(0)
    assert cache.needs(0, 9, final=True).states == 1
    assert cache.needs(0, 9).states == 9
    read(cache, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    with pytest.raises(OutOfBlocksError, match="4 slots of states are needed and 3 are free"):
        cache.reserve({0: 4})
    with cache.reserve({0: 3}):
        pass
    cache.check()


def test_only_a_whole_chunk_can_be_committed() -> None:
    cache = make()
    cache.add(0)
    with cache.reserve({0: 3}, final={0}), pytest.raises(CacheError, match="no state was reserved after row 1"):
        cache.commit(0, [0, 1])


def test_truncation_goes_back_to_the_last_state_that_is_kept() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2, 3, 4, 5])
    for token in (6, 7):
        with cache.reserve({0: 1}):
            compute(cache, 0, [token])
            cache.commit(0, [0])
    assert cache.truncate(0, 6) == 6
    assert state_of(cache, 0) == (1, 2, 3, 4, 5, 6)
    assert cache.truncate(0, 4) == 0
    assert state_of(cache, 0) == ()
    cache.check()


def test_states_of_a_rejected_past_are_forgotten() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2])
    for token in (3, 4):
        with cache.reserve({0: 1}):
            compute(cache, 0, [token])
            cache.commit(0, [0])
    cache.truncate(0, 2)
    with cache.reserve({0: 3}, final={0}):
        compute(cache, 0, [7, 8, 9])
        cache.commit(0, range(3))
    # There was a state after (1, 2, 3) once.
    assert cache.truncate(0, 3) == 2


def test_a_mark_is_returned_to_even_where_nothing_is_kept() -> None:
    cache = make(num_states=3)
    cache.add(0)
    read(cache, 0, [1, 2])
    mark = cache.mark(0)
    for token in range(3, 9):
        with cache.reserve({0: 1}, final={0}):
            compute(cache, 0, [token])
            cache.commit(0, [0])
    cache.check([mark])
    cache.return_to(0, mark)
    assert (cache.length(0), state_of(cache, 0)) == (2, (1, 2))
    cache.check()


def test_forks_share_a_state_and_take_one_of_the_rows() -> None:
    cache = make()
    cache.add(0)
    read(cache, 0, [1, 2, 3])
    cache.fork(0, 1)
    assert cache.free.states == 10 - 1
    assert state_of(cache, 1) == (1, 2, 3)
    with cache.reserve({0: 3}):
        compute(cache, 0, [4, 5, 6], parents=[-1, 0, 0])
        cache.fork(0, 2)
        cache.take(2, 0, [0, 1])
        cache.commit(0, [0, 2])
    assert [state_of(cache, each) for each in (0, 1, 2)] == [(1, 2, 3, 4, 6), (1, 2, 3), (1, 2, 3, 4, 5)]
    cache.check()
    for each in (0, 1, 2):
        cache.remove(each)
    assert cache.free == cache.size
    cache.check()


def test_prefixes_are_adopted_as_far_as_states_are_kept() -> None:
    cache = make(num_blocks=32, num_states=20, prefixes=True)
    text = list(range(50))
    cache.add(0)
    read(cache, 0, text)
    cache.publish(0, text)
    cache.add(1)
    # After every eighth block, and after the last whole one.
    assert cache.adopt(1, text[:39]) == 32
    assert state_of(cache, 1) == tuple(text[:32])
    cache.add(2)
    assert cache.adopt(2, text) == 48
    cache.add(3)
    assert cache.adopt(3, text[:31]) == 0
    cache.check()


def test_kept_states_give_way_to_those_that_are_needed() -> None:
    cache = make(num_blocks=32, num_states=4, prefixes=True)
    text = list(range(50))
    cache.add(0)
    read(cache, 0, text)
    cache.publish(0, text)
    with cache.reserve({0: 3}):
        pass
    cache.add(1)
    assert cache.adopt(1, text) == 0
    cache.check()


class StateStorm(RuleBasedStateMachine):
    """Random histories: whatever a sequence's tokens are, its state has read just those."""

    @initialize(prefixes=st.booleans(), num_states=st.integers(3, 20))
    def start(self, prefixes: bool, num_states: int) -> None:
        self.cache = make(num_states=num_states, prefixes=prefixes)
        self.texts: dict[int, list[int]] = {}
        self.marks: dict[int, Mark] = {}
        self.next_id = 0

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.cache.add(self.next_id)
        wanted = data.draw(st.lists(st.integers(0, 1), max_size=20))
        found = self.cache.adopt(self.next_id, wanted)
        self.texts[self.next_id] = wanted[:found]
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def chunk(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
        try:
            read(self.cache, sequence_id, tokens)
        except OutOfBlocksError:
            return
        self.texts[sequence_id] += tokens

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def round(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))
        parents = [-1, *(data.draw(st.integers(0, row)) for row in range(len(tokens) - 1))]
        row = data.draw(st.integers(-1, len(tokens) - 1))
        path: list[int] = []
        while row >= 0:
            path.insert(0, row)
            row = parents[row]
        forks = data.draw(st.booleans()) and bool(path)
        try:
            with self.cache.reserve({sequence_id: len(tokens)}):
                compute(self.cache, sequence_id, tokens, parents)
                if forks and self.cache.free.blocks >= self.cache.blocks_of_fork(sequence_id, 1):
                    self.cache.fork(sequence_id, self.next_id)
                    self.cache.take(self.next_id, sequence_id, [0])
                    self.texts[self.next_id] = [*self.texts[sequence_id], tokens[0]]
                    self.next_id += 1
                self.cache.commit(sequence_id, path)
        except OutOfBlocksError:
            return
        self.texts[sequence_id] += [tokens[each] for each in path]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def rounds_at_once(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
        rows = sorted(data.draw(st.sets(st.integers(0, len(tokens) - 1), max_size=4)))
        said = data.draw(st.integers(0, len(tokens)))
        try:
            with self.cache.reserve({sequence_id: len(tokens)}, states={sequence_id: len(rows)}):
                several_rounds(self.cache, sequence_id, tokens, rows)
                kept = self.cache.last_state(sequence_id, said)
                assert kept == max([row + 1 for row in rows if row < said], default=0)
                self.cache.commit(sequence_id, range(kept))
        except OutOfBlocksError:
            return
        self.texts[sequence_id] += tokens[:kept]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(set(self.texts) - set(self.marks)) or [None]))
        if sequence_id is None:
            return
        length = data.draw(st.integers(0, len(self.texts[sequence_id])))
        left = self.cache.truncate(sequence_id, length)
        assert left <= length
        del self.texts[sequence_id][left:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def mark_or_return(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        if sequence_id not in self.marks:
            self.marks[sequence_id] = self.cache.mark(sequence_id)
            return
        mark = self.marks.pop(sequence_id)
        self.cache.return_to(sequence_id, mark)
        del self.texts[sequence_id][mark.length :]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.publish(sequence_id, self.texts[sequence_id])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.fork(source, self.next_id)
        self.texts[self.next_id] = list(self.texts[source])
        self.next_id += 1

    @precondition(lambda self: set(self.texts) - set(self.marks))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(set(self.texts) - set(self.marks))))
        self.cache.remove(sequence_id)
        del self.texts[sequence_id]

    @invariant()
    def every_state_has_read_its_text(self) -> None:
        self.cache.check(list(self.marks.values()))
        for sequence_id, text in self.texts.items():
            assert state_of(self.cache, sequence_id) == tuple(text)

    def teardown(self) -> None:
        for sequence_id, mark in getattr(self, "marks", {}).items():
            self.cache.return_to(sequence_id, mark)
        for sequence_id in list(getattr(self, "texts", {})):
            self.cache.remove(sequence_id)
        if hasattr(self, "cache"):
            assert self.cache.free == self.cache.size
            self.cache.check()


TestStateStorm = StateStorm.TestCase
TestStateStorm.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
