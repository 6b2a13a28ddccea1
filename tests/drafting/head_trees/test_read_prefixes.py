"""Heads behind prefixes that the target's cache holds guess as if they had read them, and take no other text's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence, shape
from head_toys import head_context, random_eagle, with_states

from headstart.backends.torch.draft_pool import PooledDraftCache
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.head_trees.read_along import EAGER_ROWS, RESTING_ROWS
from headstart.drafting.registry import create_drafter
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner
from headstart_train.files.heads import save_head

VOCAB, BLOCK = 12, 8
BUDGET = DraftBudget(nodes=12, depth=3)
OPTIONS = {"precision": "fp32", "min_probability": 0.0, "width": 3, "draft_tokens": 3}
TEXT = np.random.default_rng(3).integers(0, VOCAB, 200).tolist()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_head(random_eagle(VOCAB), directory)
    return directory


@dataclass
class Reader:
    """A drafter beside a target whose cache has ``blocks`` blocks; None: it finds no prefixes."""

    drafter: HeadDrafter

    @classmethod
    def of(cls, head: Path, blocks: int | None = 8, window: int | None = None) -> Reader:
        context = head_context(VOCAB)
        assert context.runner is not None
        prefixes = None if blocks is None else PrefixIndex()
        runner = ModelRunner(context.runner.backend, (blocks or 8) * BLOCK, BLOCK, prefixes)
        context = replace(context, runner=runner, scope_of=scope_of)
        drafter = create_drafter("eagle3", context, **OPTIONS, model=str(head), window=window)
        assert isinstance(drafter, HeadDrafter)
        return cls(drafter)

    def begin(self, tokens: Sequence[int], found: int = 0, chunk: int = 64, name: int = 1) -> ToySequence:
        """A sequence whose first ``found`` tokens were in the cache; the others are read in chunks."""
        sequence = ToySequence(name, list(tokens))
        self.drafter.begin(sequence)
        self.read(sequence, found, len(tokens) - 1, chunk)
        return sequence

    def read(self, sequence: ToySequence, first: int, end: int, chunk: int = 64) -> None:
        for start in range(first, end, chunk):
            rows = np.asarray(sequence.tokens[start : min(start + chunk, end)], np.int32)
            self.hear(RoundOutcome(sequence, start, rows, DraftTree.empty()))

    def commit(self, sequence: ToySequence, token: int) -> None:
        """A round without a draft."""
        root = np.asarray(sequence.tokens[-1:], np.int32)
        sequence.tokens.append(token)
        position = len(sequence.tokens) - 2
        self.hear(RoundOutcome(sequence, position, root, DraftTree.empty(), committed=(token,)))

    def hear(self, outcome: RoundOutcome) -> None:
        self.drafter.observe([with_states(outcome, self.drafter.needs.taps)])

    def propose(self, *sequences: ToySequence) -> list[object]:
        trees = self.drafter.propose(sequences, [BUDGET] * len(sequences))
        assert all(len(tree) for tree in trees)
        return [shape(tree) for tree in trees]

    def rows(self, name: int = 1) -> torch.Tensor:
        """The true rows of a sequence."""
        cache = self.drafter.reader.readings[name].cache
        assert isinstance(cache, PooledDraftCache)
        slots = torch.from_numpy(cache.slots(0, cache.rows))
        return torch.stack([each[slots] for each in cache._pool.tensors])

    @property
    def lent(self) -> int:
        """Bytes of what the drafter has besides what it keeps of prefixes."""
        reader = self.drafter.reader
        return reader.running.nbytes + reader.vocabulary.nbytes

    @property
    def kept(self) -> int:
        """Bytes."""
        blocks = self.drafter.reader.prefixes._blocks.values()
        row_bytes = self.drafter.reader.running.row_bytes
        whole = [(block.cache, block.features) for block in blocks if block.is_whole]
        return sum(
            cache.rows * row_bytes + features.nbytes for cache, features in whole if cache and features is not None
        )


def scope_of(sequence: SequenceView) -> Hashable:
    """Sequences from 100 on are another tenant's."""
    return sequence.id // 100


def anew(head: Path, tokens: Sequence[int], found: int = 0) -> tuple[object, torch.Tensor]:
    """What is guessed without anything kept, and the rows that were read."""
    reader = Reader.of(head, blocks=None)
    (tree,) = reader.propose(reader.begin(tokens, found))
    return tree, reader.rows()


@pytest.mark.parametrize("chunk", [64, 5])
@pytest.mark.parametrize(
    ("shared", "found", "length"), [(16, 16, 27), (17, 16, 18), (30, 24, 40), (8, 8, 9), (40, 40, 41)]
)
def test_a_kept_prefix_is_as_good_as_one_read_anew(
    head: Path, shared: int, found: int, length: int, chunk: int
) -> None:
    """The next sequence shares ``shared`` tokens, of which the cache has ``found``: whole blocks."""
    reader = Reader.of(head)
    reader.begin(TEXT[:45], chunk=chunk)
    reader.drafter.end(1)
    other = TEXT[:shared] + [(token + 1) % VOCAB for token in TEXT[shared:length]]
    sequence = reader.begin(other, found)
    tree, rows = anew(head, other)
    assert reader.propose(sequence) == [tree]
    torch.testing.assert_close(reader.rows(), rows)
    assert reader.drafter.reader.readings[1].first == 0


def test_what_was_said_is_kept_too(head: Path) -> None:
    """A chat: the next turn's prompt holds the answer. Some rounds have drafts, whose rows are not kept."""
    reader = Reader.of(head)
    sequence = reader.begin(TEXT[:5])
    for place, token in enumerate(TEXT[5:40]):
        if place % 3:
            reader.propose(sequence)
        reader.commit(sequence, token)
    reader.drafter.end(1)
    sequence = reader.begin(TEXT[:50], found=32)
    tree, rows = anew(head, TEXT[:50])
    assert reader.propose(sequence) == [tree]
    torch.testing.assert_close(reader.rows(), rows)


def test_blocks_that_others_fill_meanwhile(head: Path) -> None:
    """Two prompts that begin alike are read together: each waits for what the other computes."""
    reader = Reader.of(head)
    first, second = (ToySequence(name, [*TEXT[:36], name]) for name in (1, 2))
    for sequence in (first, second):
        reader.drafter.begin(sequence)
    reader.read(first, 0, 16)
    reader.read(second, 16, 24)
    reader.read(first, 24, 36)
    reader.read(second, 32, 36)
    assert reader.propose(first, second) == [anew(head, [*TEXT[:36], name])[0] for name in (1, 2)]


def test_a_prompt_that_is_found_whole(head: Path) -> None:
    """Nothing of it is computed before the first draft."""
    reader = Reader.of(head)
    reader.begin(TEXT[:40])
    sequence = reader.begin(TEXT[:33], found=32)
    assert reader.propose(sequence) == [anew(head, TEXT[:33])[0]]


def test_after_a_preemption(head: Path) -> None:
    reader = Reader.of(head)
    sequence = reader.begin(TEXT[:20])
    for token in TEXT[20:37]:
        reader.commit(sequence, token)
    reader.drafter.end(1)
    reader.drafter.begin(sequence)
    reader.read(sequence, 24, 36)
    assert reader.propose(sequence) == [anew(head, TEXT[:37])[0]]


@pytest.mark.parametrize("place", [0, 7, 12])
def test_other_texts_are_never_taken(head: Path, place: int) -> None:
    """One token of the prefix differs. Up to its block's end another text is alike, behind that the first one."""
    reader = Reader.of(head, blocks=20)
    reader.begin(TEXT[:45])
    other = TEXT[:30]
    other[place] = (other[place] + 1) % VOCAB
    reader.begin([*other[: (place // BLOCK + 1) * BLOCK], *TEXT[60:70]])
    sequence = reader.begin(other, found=24, name=2)
    tree, rows = anew(head, other, found=24)
    assert reader.propose(sequence) == [tree]
    torch.testing.assert_close(reader.rows(2), rows)


def test_scopes_do_not_learn_from_each_other(head: Path) -> None:
    reader = Reader.of(head)
    reader.begin(TEXT[:45])
    behind, whole = anew(head, TEXT[:30], found=24), anew(head, TEXT[:30])
    for name, (tree, rows) in ((101, behind), (2, whole)):
        assert reader.propose(reader.begin(TEXT[:30], found=24, name=name)) == [tree]
        torch.testing.assert_close(reader.rows(name), rows)


def test_a_batch_of_known_and_unknown_prefixes(head: Path) -> None:
    reader = Reader.of(head)
    reader.begin(TEXT[:45])
    prompts = [TEXT[:30], TEXT[50:80], TEXT[:20]]
    found = [24, 0, 16]
    sequences = [reader.begin(*each, name=name) for name, each in enumerate(zip(prompts, found, strict=True), 2)]
    assert reader.propose(*sequences) == [anew(head, tokens)[0] for tokens in prompts]


def test_memory_is_bounded(head: Path) -> None:
    """What was used last stays, and of a text its beginning; sequences that end leave nothing else."""
    reader = Reader.of(head, blocks=4)
    prefixes = reader.drafter.reader.prefixes
    for first in range(0, 100, 10):
        reader.begin(TEXT[first : first + 30], name=first)
        reader.drafter.end(first)
        assert len(prefixes) <= 4
    assert 0.9 * prefixes.max_bytes < reader.kept <= prefixes.max_bytes  # the first block of a text has a row less
    assert reader.drafter.nbytes == reader.lent + prefixes.max_bytes
    assert not reader.drafter.reader.readings
    reader.begin(TEXT[:20])  # two blocks; room for two more
    reader.begin(TEXT[50:80], name=2)  # three, of which the first of the other text makes room for one
    assert reader.propose(reader.begin(TEXT[:14], found=8, name=3)) == [anew(head, TEXT[:14])[0]]
    assert reader.propose(reader.begin(TEXT[:20], found=16, name=4)) == [anew(head, TEXT[:20], found=16)[0]]
    reader.begin(TEXT[100:190], name=5)  # longer than what is kept
    assert len(prefixes) == 4
    assert reader.propose(reader.begin(TEXT[100:136], found=32, name=6)) == [anew(head, TEXT[100:136])[0]]


def test_without_cached_prefixes_nothing_is_kept(head: Path) -> None:
    reader = Reader.of(head, blocks=None)
    reader.begin(TEXT[:100])
    assert reader.kept == 0
    assert reader.drafter.nbytes == reader.lent


def test_a_head_that_nobody_asks_for_long_reads_no_more_than_the_end(head: Path) -> None:
    """Nor does it read the prompts that come then; asked again it guesses as one that began there."""
    reader, text = Reader.of(head, blocks=None), TEXT * 3
    sequence = reader.begin(text[:20])
    reader.propose(sequence)
    for token in text[20:400]:
        reader.commit(sequence, token)
    reading = reader.drafter.reader.readings[1]
    assert reading.cache.rows == 0
    assert RESTING_ROWS <= reading.known <= 2 * RESTING_ROWS
    assert len(reading.features) == reading.known
    late = reader.begin(text[:200], name=2)
    assert reader.drafter.reader.readings[2].known == RESTING_ROWS
    assert reader.rows(2).shape[1] == 0
    for each in (sequence, late):
        assert reader.propose(each) == [anew(head, each.tokens, len(each.tokens) - 1 - RESTING_ROWS)[0]]
    for _ in range(2 * EAGER_ROWS):
        reader.commit(late, 3)
        reader.propose(late)
    assert reader.drafter.reader.readings[2].known == RESTING_ROWS + 2 * EAGER_ROWS
