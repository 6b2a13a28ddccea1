"""Shards that others write become the same corpus; what is done is not lost, and what is lost is written again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from test_shards import GIVEN, WRITING, bytes_of, small
from thinning import thorough_but

from headstart.errors import ConfigError
from headstart_train.text import gathering, shards
from headstart_train.text.corpus import Corpus, Document
from headstart_train.text.gathering import Gathering, Order, Shelf, WrittenShard
from headstart_train.text.shards import Shard, write_answers, write_shard

TOKENS = 280


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PART", 4)
    monkeypatch.setattr(shards, "SHARD", 16)
    monkeypatch.setattr(gathering, "SHARD", 16)


@cache
def shard(number: int) -> list[Document]:
    return write_shard(small(), Shard.of(number, GIVEN), WRITING)


class Others:
    """Writers that hand shards out in an order of their own; ``asked`` holds each number that was asked for."""

    def __init__(self, count: int = 2, last_first: bool = False, backends: Sequence[str] = ("one",)) -> None:
        self.count, self.last_first, self.backends = count, last_first, backends
        self.asked: list[list[int]] = []
        self.stopped = self.closed = False
        self.most: int | None = None

    def write(self, order: Order, shards: Sequence[Shard]) -> Iterator[WrittenShard]:
        assert order.writing == WRITING
        numbers = [each.number for each in shards]
        assert [each.prompts for each in shards] == [Shard.of(number, GIVEN).prompts for number in numbers]
        self.asked.append(numbers)
        try:
            # Only the first few, so that a test does not wait for what nobody needs.
            todo = numbers[:4]
            for number in reversed(todo) if self.last_first else todo:
                if self.most is not None:
                    self.most -= 1
                    if self.most < 0:
                        raise ConfigError("the writers stopped.")
                yield WrittenShard(number, shard(number), self.backends[number % len(self.backends)])
        finally:
            self.stopped = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def alone(tmp_path: Path) -> Corpus:
    """As one engine writes it by itself."""
    corpus = Corpus(tmp_path / "alone", {})
    write_answers(small(), corpus, TOKENS, WRITING, prompts=GIVEN)
    return corpus


def gathered(others: Others, corpus: Corpus, said: list[str] | None = None) -> Gathering:
    order = Order("tiny", "fp32", "digest", WRITING, 4, 64)
    return Gathering(others, order, corpus, GIVEN, ([] if said is None else said).append)


@pytest.mark.parametrize("last_first", thorough_but([True], [False, True]))
def test_the_corpus_is_the_one_that_is_written_here(alone: Corpus, last_first: bool, tmp_path: Path) -> None:
    others, corpus, told = Others(last_first=last_first), Corpus(tmp_path / "theirs", {}), list[tuple[int, int]]()
    gathering = gathered(others, corpus)
    assert gathering.first_documents == 32
    # As a training asks: a beginning, pieces, the rest.
    for documents in (16, 3, None):
        gathering.write(TOKENS, documents, lambda *done: told.append(done))
    gathering.close()
    assert others.stopped
    assert others.closed
    # What was written ahead stays on the shelf, in case the text is to grow.
    shelf = Shelf(corpus.directory / "shards")
    for number in shelf.numbers():
        shelf.drop(number)
    assert bytes_of(corpus) == bytes_of(alone)
    assert sum(each for _, each in told) == corpus.num_answer_tokens


def test_what_is_done_is_not_written_again(alone: Corpus, tmp_path: Path) -> None:
    corpus, others = Corpus(tmp_path / "theirs", {}), Others(last_first=True)
    others.most = 2  # 3 and 2, before their turn
    with pytest.raises(ConfigError, match="stopped"):
        gathered(others, corpus).write(TOKENS)
    assert len(corpus) == 0
    (corpus.directory / "shards" / "000003.npz").write_bytes(b"half")
    again = Others()
    gathering = gathered(again, Corpus(tmp_path / "theirs", {}))
    gathering.write(TOKENS)
    assert 2 not in again.asked[0]
    assert {0, 1} < set(again.asked[0])
    kept = Corpus(tmp_path / "theirs", {})
    assert [each.tokens.tolist() for each in kept] == [each.tokens.tolist() for each in alone]
    # Whole shards that are in the corpus have left the shelf.
    assert Shelf(kept.directory / "shards").numbers().isdisjoint({0, 1})


def test_a_text_that_was_begun_here_is_continued_there(alone: Corpus, tmp_path: Path) -> None:
    corpus, others = Corpus(tmp_path / "theirs", {}), Others()
    write_answers(small(), corpus, 60, WRITING, prompts=GIVEN)
    gathered(others, corpus).write(TOKENS)
    assert [each.tokens.tolist() for each in corpus] == [each.tokens.tolist() for each in alone]


def test_a_shard_that_never_comes_is_an_error(tmp_path: Path) -> None:
    class Nobody(Others):
        def write(self, order: Order, shards: Sequence[Shard]) -> Iterator[WrittenShard]:
            return iter(())

    with pytest.raises(ConfigError, match="shard 0 of the text was not written"):
        gathered(Nobody(), Corpus(tmp_path, {})).write(TOKENS)


def test_processors_of_different_kinds_are_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    gathered(Others(backends=("avx2", "amx")), Corpus(tmp_path, {}), said).write(TOKENS)
    (sentence,) = said
    assert "(amx, avx2)" in sentence


def test_the_shelf_keeps_documents_as_they_are(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shards")
    assert shelf.get(7) is None
    shelf.put(7, shard(0))
    assert shelf.numbers() == {7}
    kept = shelf.get(7)
    assert kept is not None
    for one, other in zip(kept, shard(0), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.answers.tolist() == other.answers.tolist()
        assert (one.tokens.dtype, one.answers.dtype) == (other.tokens.dtype, other.answers.dtype)
    shelf.drop(7)
    assert not (tmp_path / "shards").exists()
