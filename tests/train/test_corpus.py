from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headstart.errors import ConfigError
from headstart_train.text.corpus import Corpus, Document


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
    assert len(Corpus.existing(tmp_path, None)) == 1
    with pytest.raises(ConfigError, match="another directory"):
        Corpus.existing(tmp_path, "y")


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
