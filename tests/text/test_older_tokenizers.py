"""Directories whose tokenizer is older than tokenizer.json."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from headstart.errors import CheckpointError
from headstart.text.directory_tokenizer import read_directory_tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, how are you today?",
    "numbers 1 2 3 4 5 and words",
    "def main():\n    return 0",
]
TEXTS = (*LINES, "Hello  World\n\n  ünïque 世界 <s> </s>", "", " ", "   leading and trailing   ")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece vocabulary, as Llama's is."""
    path = tmp_path_factory.mktemp("sentencepiece")
    (path / "text.txt").write_text("\n".join(LINES * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(path / "text.txt"),
        model_prefix=str(path / "tokenizer"),
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        minloglevel=2,
    )
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path


def test_sentencepiece_is_read_as_transformers_reads_it(directory: Path) -> None:
    parts = read_directory_tokenizer(directory, {})
    reference = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    for text in TEXTS:
        assert parts.backend.encode(text).ids == reference(text)["input_ids"]
    assert parts.special_tokens["eos_token"] == "</s>"
    assert parts.eos_token_ids == (reference.eos_token_id,)


def test_sentencepiece_agrees_with_its_own_library(directory: Path) -> None:
    """For texts that touch neither special tokens nor spaces at their ends."""
    backend = read_directory_tokenizer(directory, {}).backend
    own = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    for text in LINES[:3]:
        assert backend.encode(text, add_special_tokens=False).ids == own.encode(text)


def test_byte_pairs_in_two_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    vocabulary = {letter: place for place, letter in enumerate(["<|endoftext|>", "a", "b", "ab", "Ġ", "Ġab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    assert read_directory_tokenizer(tmp_path, {}).backend.encode("ab ab").ids == [3, 5]


def test_a_damaged_file_is_refused(directory: Path, tmp_path: Path) -> None:
    for name in ("tokenizer_config.json", "config.json"):
        shutil.copy(directory / name, tmp_path / name)
    (tmp_path / "tokenizer.model").write_bytes((directory / "tokenizer.model").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"tokenizer\.model cannot be converted"):
        read_directory_tokenizer(tmp_path, {})


def test_what_converts_them_is_named_where_it_is_missing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(CheckpointError, match=r"which sentencepiece converts; install headstart .*transformers"):
        read_directory_tokenizer(directory, {})
