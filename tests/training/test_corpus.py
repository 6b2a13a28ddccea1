from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headstart.errors import ConfigError
from headstart.training.corpus import Corpus, Document, make_packs, split_held_out


def document(*tokens: int, prompt: int = 1) -> Document:
    return Document(np.asarray(tokens, dtype=np.int32), np.arange(len(tokens)) >= prompt)


def test_documents_are_read_back(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, {"target": "x"})
    corpus.extend([document(1, 2, 3), document(4, 5, prompt=2)])
    corpus.extend([document(6, 7, 8, 9, prompt=3)])
    for each in (corpus, Corpus(tmp_path, {"target": "x"})):
        assert [part.tokens.tolist() for part in each] == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
        assert [part.answers.tolist() for part in each][2] == [False, False, False, True]
        assert (len(each), each.num_tokens, each.num_answer_tokens) == (3, 9, 3)
    assert corpus.counts(10, [0, 2]).tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1]


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
    Corpus(tmp_path, {}).extend([document(1, 2, 3)])
    for name, junk in (("tokens.i32", b"abcde"), ("answers.u8", b"x"), ("ends.i64", b"123")):
        with (tmp_path / name).open("ab") as file:
            file.write(junk)
    corpus = Corpus(tmp_path, {})
    corpus.extend([document(7, 8)])
    assert [part.tokens.tolist() for part in Corpus(tmp_path, {})] == [[1, 2, 3], [7, 8]]


def test_text_that_is_being_written_is_read_but_not_cut(tmp_path: Path) -> None:
    writer = Corpus(tmp_path, {"target_digest": "x"})
    writer.extend([document(1, 2, 3)])
    with (tmp_path / "tokens.i32").open("ab") as file:
        file.write(b"abcde")
    before = (tmp_path / "tokens.i32").read_bytes()
    reader = Corpus.existing(tmp_path, "x")
    assert [part.tokens.tolist() for part in reader] == [[1, 2, 3]]
    assert (reader.num_tokens, reader.num_answer_tokens) == (3, 2)
    assert (tmp_path / "tokens.i32").read_bytes() == before


def test_a_corpus_of_something_else_is_refused(tmp_path: Path) -> None:
    Corpus(tmp_path, {"target": "x"}).extend([document(1, 2)])
    with pytest.raises(ConfigError, match="another directory"):
        Corpus(tmp_path, {"target": "y"})
    for damage in ("", "[]"):
        (tmp_path / "corpus.json").write_text(damage)
        with pytest.raises(ConfigError, match=r"corpus\.json"):
            Corpus(tmp_path, {"target": "x"})
    (tmp_path / "corpus.json").write_text('{"target": "x"}')
    (tmp_path / "tokens.i32").write_bytes(b"")
    with pytest.raises(ConfigError, match="shorter than its documents"):
        Corpus(tmp_path, {"target": "x"})


def test_packs_hold_whole_documents_where_there_is_room() -> None:
    documents = [document(*range(count)) for count in (3, 4, 5, 12, 1, 2)]
    packs = make_packs(documents, 8)
    assert [[len(part.tokens) for part in pack.documents] for pack in packs] == [[3, 4], [5, 2], [8]]
    assert [len(pack) for pack in packs] == [7, 7, 8]


def test_one_in_twenty_is_held_out() -> None:
    train, held_out = split_held_out(45)
    assert [index // 20 for index in held_out] == [0, 1]
    assert sorted(train + held_out) == list(range(45))
    assert split_held_out(5)[1] == []
    assert split_held_out(400)[1][:2] == held_out


@pytest.mark.parametrize("kinds", [2, 3, 4, 5, 10])
def test_what_takes_turns_is_held_out_alike(kinds: int) -> None:
    """Temperatures and sources do, with periods that divide twenty."""
    held_out = split_held_out(40_000)[1]
    counts = [sum(index % kinds == kind for index in held_out) for kind in range(kinds)]
    expected = len(held_out) / kinds
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts)
