"""Marian's tokenizers: ids of ``vocab.json`` for what the source's sentencepiece model makes of a text."""

from __future__ import annotations

import importlib.util
import json
import random
import struct
from pathlib import Path

import pytest

from headstart.errors import CheckpointError
from headstart.text.directory_tokenizer import read_directory_tokenizer
from headstart.text.tokenizer import Tokenizer
from mutations import mutate

SOURCE = {"▁": -3.0, "▁a": -2.0, "a": -4.0, "b": -4.0, "ab": -3.5, "▁ab": -5.0, "c": -6.0, "cab": -9.0}
FOREIGN = ["▁z", "z", "zz"]
IDS = {piece: place for place, piece in enumerate(["</s>", "<unk>", ">>fra<<", *SOURCE, *FOREIGN, "<pad>"])}


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float, kind: int) -> bytes:
    return message(1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


def model_bytes(kind: int = 1) -> bytes:
    """Control and unknown pieces, the source's, a trainer's kind, a normalizer without a table."""
    pieces = piece("<unk>", 0, 2) + piece("</s>", 0, 3) + b"".join(piece(text, s, 1) for text, s in SOURCE.items())
    return pieces + message(2, b"\x18" + varint(kind)) + message(3, message(1, b"identity"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "source.spm").write_bytes(model_bytes())
    (tmp_path / "vocab.json").write_text(json.dumps(IDS), encoding="utf-8")
    settings = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tmp_path


def load(directory: Path) -> Tokenizer:
    parts = read_directory_tokenizer(directory, {"eos_token_id": 0})
    return Tokenizer(parts.backend, parts.special_tokens, parts.eos_token_ids)


def best_pieces(text: str) -> list[str]:
    """Of all ways to cut it, by trial."""
    if not text:
        return []
    ways = [[start, *best_pieces(text[len(start) :])] for start in SOURCE if text.startswith(start)]
    return max(ways, key=lambda way: sum(SOURCE[each] for each in way))


@pytest.mark.parametrize("text", ["a", "ab", "abab", "cab cab", "a b c", "abcab", "bb  ab "])
def test_texts_are_cut_by_the_sources_scores(text: str, directory: Path) -> None:
    tokenizer = load(directory)
    marked = "▁" + "▁".join(text.split())
    assert tokenizer.encode(text) == [*(IDS[each] for each in best_pieces(marked)), 0]
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())
    assert tokenizer.eos_token_ids == (0,)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("az", ["▁a", "z"]),  # a character of the target alone
        ("aq", ["▁a", "<unk>"]),
        ("aqq", ["▁a", "<unk>"]),
        (">>fra<< a", [">>fra<<", "▁a"]),
        ("a>>fra<<", ["▁a", ">>fra<<"]),
    ],
)
def test_what_the_source_does_not_know(text: str, pieces: list[str], directory: Path) -> None:
    assert load(directory).encode(text, add_special_tokens=False) == [IDS[each] for each in pieces]


def test_pieces_of_the_target_are_spelt(directory: Path) -> None:
    assert load(directory).decode([IDS["▁z"], IDS["zz"], IDS["▁ab"], 0]) == "zzz ab"


def test_other_models_and_lists_are_refused(directory: Path) -> None:
    (directory / "source.spm").write_bytes(model_bytes(kind=2))
    with pytest.raises(CheckpointError, match="no unigram model"):
        load(directory)
    (directory / "source.spm").write_bytes(model_bytes())
    for ids in ({"a": 0}, {**IDS, "a": 99}, {**IDS, "a": "1"}):
        (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        with pytest.raises(CheckpointError, match="does not number"):
            load(directory)


def test_damaged_models_are_refused_in_a_sentence(directory: Path) -> None:
    rng = random.Random(1)
    for _ in range(200):
        (directory / "source.spm").write_bytes(mutate(model_bytes(), rng))
        try:
            load(directory).encode("ab")
        except CheckpointError as error:
            assert str(error).endswith(".")  # noqa: PT017


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is None, reason="needs the package sentencepiece")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ids_are_those_of_transformers(directory: Path) -> None:
    from transformers import MarianTokenizer

    (directory / "target.spm").write_bytes(model_bytes())
    (directory / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    reference, tokenizer = MarianTokenizer.from_pretrained(directory), load(directory)
    for text in ("abcab ab", "a z", ">>fra<< cab", "aqb"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
