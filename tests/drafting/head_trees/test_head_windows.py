"""Heads that look back over a window of the text: what lies further back is neither read nor kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from head_toys import random_eagle
from test_read_prefixes import BLOCK, TEXT, VOCAB, Reader, anew

from headstart.backends.torch.draft_pool import BLOCK as ROWS
from headstart.backends.torch.draft_pool import PooledDraftCache
from headstart.drafting.registry import checked_options
from headstart.errors import ConfigError
from headstart_train.files.heads import save_head

WINDOW = 40
LONG = np.random.default_rng(4).integers(0, VOCAB, 300).tolist()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_head(random_eagle(VOCAB), directory)
    return directory


def windowed(head: Path, blocks: int | None = 64, window: int | None = WINDOW) -> Reader:
    return Reader.of(head, blocks, window=window)


def cache_of(reader: Reader, name: int = 1) -> PooledDraftCache:
    cache = reader.drafter.reader.readings[name].cache
    assert isinstance(cache, PooledDraftCache)
    return cache


@pytest.mark.parametrize("chunk", [16, 200])
def test_of_a_long_prompt_the_end_is_read(head: Path, chunk: int) -> None:
    """Guesses are those of a head that has heard of no more; positions stay those of the text."""
    reader = windowed(head)
    sequence = reader.begin(LONG, chunk=chunk)
    tree, _ = anew(head, LONG, found=len(LONG) - 1 - WINDOW)
    assert reader.propose(sequence) == [tree]
    assert (cache_of(reader).first, cache_of(reader).rows) == (len(LONG) - 1 - WINDOW, WINDOW)


def test_short_texts_are_read_whole(head: Path) -> None:
    reader = windowed(head)
    sequence = reader.begin(LONG[: WINDOW // 2])
    assert reader.propose(sequence) == [anew(head, LONG[: WINDOW // 2])[0]]


@pytest.mark.thorough
def test_rows_that_fall_behind_are_freed(head: Path) -> None:
    """While a text grows, the head holds its window and a block or two; it guesses as if it had begun there."""
    reader = windowed(head, blocks=None)
    sequence = reader.begin(LONG[:10])
    pool = cache_of(reader)._pool
    for place, token in enumerate(LONG[10:]):
        if place % 3:
            reader.propose(sequence)
        reader.commit(sequence, token)
        assert cache_of(reader).rows <= WINDOW + 2 * ROWS
        assert len(cache_of(reader).blocks) <= WINDOW // ROWS + 3
    (tree,) = reader.propose(sequence)
    cache = cache_of(reader)
    assert cache.first > 0
    assert cache.rows >= WINDOW
    assert cache.first + cache.rows == len(sequence.tokens) - 1
    assert tree == anew(head, LONG, found=cache.first)[0]
    reader.drafter.end(1)
    assert len(pool._free) == pool._blocks


def test_a_head_whose_layers_have_windows_reads_no_more_than_they_see(tmp_path: Path) -> None:
    """Unasked, and with the guesses of one that reads all."""
    save_head(random_eagle(VOCAB, windows=(20,)), tmp_path)
    reader, asked = windowed(tmp_path, window=None), windowed(tmp_path)
    sequence = reader.begin(LONG)
    guessed = reader.propose(sequence)
    assert cache_of(reader).rows <= 20
    # The rows before are there, but not seen.
    assert guessed == asked.propose(asked.begin(LONG))
    assert cache_of(asked).rows <= 20


def test_the_next_turn_goes_on_from_what_was_kept(head: Path) -> None:
    """Of a prefix of the target's cache that is longer than the window: the blocks at its end."""
    reader = windowed(head)
    reader.begin(LONG[:203])
    reader.drafter.end(1)
    sequence = reader.begin(LONG[:205], found=200, name=2)
    (tree,) = reader.propose(sequence)
    first = cache_of(reader, 2).first
    assert 200 - WINDOW - BLOCK <= first < 200 - WINDOW + BLOCK
    assert tree == anew(head, LONG[:205], found=first)[0]


def test_what_one_passed_over_another_may_bring(head: Path) -> None:
    """The beginning of a long text is not read; a shorter text with the same beginning reads it, and it is kept."""
    reader = windowed(head)
    reader.begin(LONG[:203])
    short = reader.begin(LONG[:50], name=2)
    assert reader.propose(short) == [anew(head, LONG[:50], found=cache_of(reader, 2).first)[0]]
    sequence = reader.begin(LONG[:49], found=48, name=3)
    (tree,) = reader.propose(sequence)
    assert cache_of(reader, 3).first < 48 - WINDOW // 2
    assert tree == anew(head, LONG[:49], found=cache_of(reader, 3).first)[0]


def test_batches_of_short_and_long_texts(head: Path) -> None:
    reader = windowed(head)
    texts = [LONG[:20], LONG, TEXT[:100]]
    sequences = [reader.begin(text, name=name) for name, text in enumerate(texts)]
    alone = [anew(head, text, found=max(len(text) - 1 - WINDOW, 0))[0] for text in texts]
    assert reader.propose(*sequences) == alone


@pytest.mark.parametrize("window", [-1, 0.5])
def test_windows_that_are_none_are_refused(window: float) -> None:
    with pytest.raises(ConfigError, match="window"):
        checked_options("eagle3", more={"window": window})


@pytest.mark.parametrize(
    ("description", "option", "window"),
    [
        ({"headstart": {"window": 24, "settings": {"length": 48}}}, None, 24),
        ({"headstart": {"settings": {"length": 48}}}, None, 48),
        ({"headstart": {"window": 24}}, 32, 32),
        ({"headstart": {"window": 24}}, 0, None),
        ({"headstart": {"window": "wide"}}, None, None),
        ({"max_position_embeddings": 56}, None, 56),
    ],
)
def test_a_head_looks_back_as_far_as_its_files_say(
    description: dict[str, object], option: int | None, window: int | None, tmp_path: Path
) -> None:
    """Unless another window is named: the longest texts of a training are what a head knows."""
    save_head(random_eagle(VOCAB), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | description), encoding="utf-8")
    reader = windowed(tmp_path, window=option)
    reader.propose(reader.begin(LONG))
    assert cache_of(reader).rows == (window or len(LONG) - 1)
