"""Marian's tokenizers: ids of ``vocab.json`` for what the source's sentencepiece model makes of a text."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest
from mutations import mutate
from sentencepiece_bytes import model_bytes

from headstart.errors import CheckpointError
from headstart.text.directory_tokenizer import read_directory_tokenizer
from headstart.text.tokenizer import Tokenizer

SOURCE = {"▁": -3.0, "▁a": -2.0, "a": -4.0, "b": -4.0, "ab": -3.5, "▁ab": -5.0, "c": -6.0, "cab": -9.0}
FOREIGN = ["▁z", "z", "zz"]
IDS = {piece: place for place, piece in enumerate(["</s>", "<unk>", ">>fra<<", *SOURCE, *FOREIGN, "<pad>"])}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "source.spm").write_bytes(model_bytes(SOURCE))
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
    (directory / "source.spm").write_bytes(model_bytes(SOURCE, kind=2))
    with pytest.raises(CheckpointError, match="no unigram model"):
        load(directory)
    (directory / "source.spm").write_bytes(model_bytes(SOURCE))
    for ids in ({"a": 0}, {**IDS, "a": 99}, {**IDS, "a": "1"}):
        (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        with pytest.raises(CheckpointError, match="does not number"):
            load(directory)


def test_damaged_models_are_refused_in_a_sentence(directory: Path) -> None:
    rng = random.Random(1)
    for _ in range(200):
        (directory / "source.spm").write_bytes(mutate(model_bytes(SOURCE), rng))
        try:
            load(directory).encode("ab")
        except CheckpointError as error:
            assert str(error).endswith(".")  # noqa: PT017


TARGET = {"▁": -3.0, "▁z": -2.0, "z": -4.0, "zz": -4.5, "a": -5.0}
TARGET_IDS = {piece: place for place, piece in enumerate(["</s>", "<unk>", *TARGET, "<pad>"])}


@pytest.fixture
def apart(directory: Path) -> Path:
    """With a vocabulary for each side."""
    (directory / "target.spm").write_bytes(model_bytes(TARGET))
    (directory / "target_vocab.json").write_text(json.dumps(TARGET_IDS), encoding="utf-8")
    settings = json.loads((directory / "tokenizer_config.json").read_text()) | {"separate_vocabs": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def load_both(directory: Path) -> tuple[Tokenizer, Tokenizer]:
    parts = read_directory_tokenizer(directory, {"eos_token_id": 0})
    assert parts.source is not None
    both = (Tokenizer(each.backend, each.special_tokens, each.eos_token_ids) for each in (parts, parts.source))
    target, source = both
    return target, source


def test_each_side_has_ids_of_its_own(apart: Path) -> None:
    target, source = load_both(apart)
    assert source.encode("ab a") == [*(IDS[each] for each in best_pieces("▁ab▁a")), 0]
    assert target.encode("zz") == [TARGET_IDS["▁z"], TARGET_IDS["z"], 0]
    assert target.decode([TARGET_IDS["▁z"], TARGET_IDS["a"], 0]) == "za"
    assert (target.eos_token_ids, source.eos_token_ids) == ((0,), (0,))


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is None, reason="needs the package sentencepiece")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_sides_are_those_of_transformers(apart: Path) -> None:
    from transformers import MarianTokenizer

    (apart / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    reference = MarianTokenizer.from_pretrained(apart)
    target, source = load_both(apart)
    for text in ("abcab ab", "a b", "cab"):
        assert source.encode(text) == reference(text)["input_ids"]
    for text in ("zz", "z za", "zaz"):
        assert target.encode(text) == reference(text_target=text)["input_ids"]


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is None, reason="needs the package sentencepiece")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ids_are_those_of_transformers(directory: Path) -> None:
    from transformers import MarianTokenizer

    (directory / "target.spm").write_bytes(model_bytes(SOURCE))
    (directory / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    reference, tokenizer = MarianTokenizer.from_pretrained(directory), load(directory)
    for text in ("abcab ab", "a z", ">>fra<< cab", "aqb"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
