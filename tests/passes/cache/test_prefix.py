"""Published blocks: found by what they hold, never by accident, and given up oldest first."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toys import ToyStorage

from headstart.errors import OutOfBlocksError
from headstart.passes.cache.paged import PagedCache
from headstart.passes.cache.prefix import PrefixIndex

BLOCK = 4


def one_byte(data: bytes) -> bytes:
    """A digest of 8 bits: among a few hundred blocks, collisions are the rule."""
    return hashlib.sha256(data).digest()[:1]


def make(num_blocks: int = 8, **options: object) -> PagedCache:
    return PagedCache(ToyStorage(num_blocks, BLOCK), PrefixIndex("toy", **options))  # type: ignore[arg-type]


def slots(cache: PagedCache, sequence_id: int, count: int) -> list[int]:
    (table,) = cache.tables([sequence_id]).blocks
    return [int(table[i // BLOCK]) * BLOCK + i % BLOCK for i in range(count)]


def read(cache: PagedCache, sequence_id: int) -> list[int]:
    return cache.storage.tokens[slots(cache, sequence_id, cache.length(sequence_id))].tolist()


def compute(cache: PagedCache, sequence_id: int, text: list[int]) -> int:
    """Bring a sequence up to ``text`` as an engine does: adopt, compute the rest, publish. Returns adopted tokens."""
    found = cache.adopt(sequence_id, text)
    first = cache.length(sequence_id)
    with cache.reserve({sequence_id: len(text) - first}):
        cache.storage.tokens[slots(cache, sequence_id, len(text))[first:]] = text[first:]
        cache.commit(sequence_id, range(len(text) - first))
    cache.publish(sequence_id, text)
    return found


def test_full_blocks_are_shared_while_held_and_after() -> None:
    cache = make()
    cache.add(0)
    assert compute(cache, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 0
    cache.add(1)
    assert compute(cache, 1, [1, 2, 3, 4, 5, 6, 7, 8, 10]) == 8
    assert cache.allocator.num_free == 8 - 4
    cache.remove(0)
    cache.remove(1)
    assert cache.allocator.num_free == 8
    assert cache.allocator.num_kept == 2
    cache.add(2)
    assert compute(cache, 2, [1, 2, 3, 4, 6, 6, 7, 8]) == 4
    assert read(cache, 2) == [1, 2, 3, 4, 6, 6, 7, 8]
    cache.check()


def test_a_salt_sees_its_own_blocks_only() -> None:
    cache = make()
    for sequence_id, salt, expected in [(0, "a", 0), (1, "b", 0), (2, "", 0), (3, "a", 4), (4, "b", 4)]:
        cache.add(sequence_id, salt)
        assert compute(cache, sequence_id, [1, 2, 3, 4]) == expected


def test_the_block_used_longest_ago_gives_way_and_tails_before_heads() -> None:
    cache = make(num_blocks=4)
    for sequence_id, text in enumerate([[1] * 8, [2] * 8]):
        cache.add(sequence_id)
        compute(cache, sequence_id, text)
        cache.remove(sequence_id)
    cache.add(2)
    assert compute(cache, 2, [3] * 4) == 0
    cache.remove(2)
    for sequence_id, text, expected in [(3, [1] * 8, 4), (4, [2] * 8, 8)]:
        cache.add(sequence_id)
        assert cache.adopt(sequence_id, text) == expected


def test_a_shared_block_that_is_rolled_into_is_copied_and_its_contents_stay_known() -> None:
    cache = make()
    cache.add(0)
    compute(cache, 0, [1, 2, 3, 4])
    cache.add(1)
    assert compute(cache, 1, [1, 2, 3, 4]) == 4
    cache.truncate(1, 2)
    with cache.reserve({1: 2}):
        cache.storage.tokens[slots(cache, 1, 4)[2:]] = [8, 9]
        cache.commit(1, [0, 1])
    assert (read(cache, 0), read(cache, 1)) == ([1, 2, 3, 4], [1, 2, 8, 9])
    cache.remove(0)
    cache.add(2)
    assert cache.adopt(2, [1, 2, 3, 4]) == 4


def test_a_block_that_is_written_again_is_no_longer_known_by_its_old_contents() -> None:
    cache = make()
    cache.add(0)
    compute(cache, 0, [1, 2, 3, 4])
    cache.truncate(0, 3)
    compute(cache, 0, [1, 2, 3, 5])
    cache.add(1)
    assert cache.adopt(1, [1, 2, 3, 4]) == 0
    assert cache.adopt(1, [1, 2, 3, 5]) == 4


@pytest.mark.parametrize("hash_of", [one_byte, lambda data: b""], ids=["8 bits", "0 bits"])
def test_colliding_digests_give_no_wrong_hit(hash_of: object) -> None:
    cache = make(num_blocks=600, hash_of=hash_of)
    texts = [[i, i, i, i, 7, 7, 7, 7] for i in range(250)]
    for sequence_id, text in enumerate(texts):
        cache.add(sequence_id, salt=str(sequence_id % 2))
        compute(cache, sequence_id, text)
        assert read(cache, sequence_id) == text
    for sequence_id in range(250):
        cache.remove(sequence_id)
    cache.check()
    hits = 0
    for sequence_id, text in enumerate(texts):
        cache.add(sequence_id, salt=str(sequence_id % 2))
        hits += cache.adopt(sequence_id, text)
        assert read(cache, sequence_id) == text[: cache.length(sequence_id)]
        cache.remove(sequence_id)
    assert hits < 250 * 8


class PrefixStorm(RuleBasedStateMachine):
    """Random histories over few tokens, so that prefixes meet, with colliding digests; plain lists are the model."""

    @initialize()
    def start(self) -> None:
        self.cache = make(num_blocks=12, hash_of=one_byte)
        self.texts: dict[int, list[int]] = {}
        self.salts: dict[int, str] = {}
        self.published: set[tuple[str, tuple[int, ...]]] = set()
        self.next_id = 0

    @rule(text=st.lists(st.integers(0, 1), max_size=14), salt=st.sampled_from(["a", "b"]))
    def admit(self, text: list[int], salt: str) -> None:
        self.cache.add(self.next_id, salt)
        found = self.cache.adopt(self.next_id, text)
        for length in range(BLOCK, found + 1, BLOCK):
            assert (salt, tuple(text[:length])) in self.published
        self.texts[self.next_id], self.salts[self.next_id] = text[:found], salt
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), rows=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def verify(self, data: st.DataObject, rows: list[int]) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        keep = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True).map(sorted))
        text = self.texts[sequence_id]
        try:
            with self.cache.reserve({sequence_id: len(rows)}):
                self.cache.storage.tokens[slots(self.cache, sequence_id, len(text) + len(rows))[len(text) :]] = rows
                self.cache.commit(sequence_id, keep)
        except OutOfBlocksError:
            return
        text += [rows[row] for row in keep]
        self.cache.publish(sequence_id, text)
        for length in range(BLOCK, len(text) + 1, BLOCK):
            self.published.add((self.salts[sequence_id], tuple(text[:length])))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        length = data.draw(st.integers(0, len(self.texts[sequence_id])))
        self.cache.truncate(sequence_id, length)
        del self.texts[sequence_id][length:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.fork(source, self.next_id)
        self.texts[self.next_id], self.salts[self.next_id] = list(self.texts[source]), self.salts[source]
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.texts)))
        self.cache.remove(sequence_id)
        del self.texts[sequence_id]

    @invariant()
    def every_text_is_intact(self) -> None:
        self.cache.check()
        for sequence_id, text in self.texts.items():
            assert read(self.cache, sequence_id) == text

    @invariant()
    def every_known_block_holds_what_it_is_known_for(self) -> None:
        assert self.cache.pool.prefixes is not None
        allocator = self.cache.allocator
        links = list(self.cache.pool.prefixes.links())
        for link in links:
            first = link.block * BLOCK
            assert tuple(self.cache.storage.tokens[first : first + BLOCK].tolist()) == link.tokens
        assert allocator.num_kept == sum(not allocator.references(link.block) for link in links)

    def teardown(self) -> None:
        for sequence_id in list(getattr(self, "texts", {})):
            self.cache.remove(sequence_id)
        if self.next_id:
            assert self.cache.allocator.num_free == 12
            assert not any(map(self.cache.allocator.references, range(12)))


TestPrefixStorm = PrefixStorm.TestCase
TestPrefixStorm.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.slow
class TestLargePrefixStorm(PrefixStorm.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=2000, stateful_step_count=80, deadline=None, derandomize=True)
