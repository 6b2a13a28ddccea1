"""Tokenizer files that would run away or multiply a text: one sentence, and no memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_model

from headstart.errors import CheckpointError, RequestError
from headstart.models.checkpoint import open_checkpoint
from headstart.text.tokenizer import Tokenizer
from headstart.text.tokenizer_faults import growth


def tokenizer_with(directory: Path, **parts: Any) -> Tokenizer:
    """The tiny model's tokenizer with some parts of its file replaced."""
    write_tiny_model(directory)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return Tokenizer.from_checkpoint(open_checkpoint(directory))


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(old: dict[str, str], new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": old, "content": new}


def sequence(*steps: dict[str, Any], of: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", of: list(steps)}


def charsmap(longest: int) -> str:
    return base64.b64encode((8).to_bytes(4, "little") + bytes(8) + b"ab\0" + b"x" * longest + b"\0").decode()


RUNAWAYS = {
    "split": {"pre_tokenizer": split("(a+a+)+b")},
    "split on spaces": {"pre_tokenizer": split(r"(\s+\s+)+\d")},
    "replacement": {"normalizer": replace({"Regex": "(0+0+)+y"}, "b")},
}


@pytest.mark.parametrize("parts", RUNAWAYS.values(), ids=RUNAWAYS)
def test_a_regular_expression_that_runs_away_is_refused(tmp_path: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be used \(Onig: Regex search error: retry-limit"):
        tokenizer_with(tmp_path, **parts)


def test_one_that_runs_away_in_loading_is_refused(tmp_path: Path) -> None:
    token = {"id": 259, "content": "xy" * 25, "normalized": True, "special": False, "single_word": False}
    added = [token | {"lstrip": False, "rstrip": False}]
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a valid tokenizer \(Onig"):
        tokenizer_with(tmp_path, normalizer=replace({"Regex": "((xy)+(xy)+)+z"}, "b"), added_tokens=added)


@pytest.mark.parametrize("parse_special", [True, False])
def test_one_that_runs_away_at_some_texts_costs_the_request_alone(tmp_path: Path, parse_special: bool) -> None:
    tokenizer = tokenizer_with(tmp_path, pre_tokenizer=split("((?:xy)+(?:xy)+)+z"))
    with pytest.raises(RequestError, match=r"fails at this text \(Onig: .*give another text or model\.$") as caught:
        tokenizer.encode("xy" * 40, parse_special=parse_special)
    assert caught.value.field == "prompt"
    assert "\n" not in str(caught.value)
    assert tokenizer.decode(tokenizer.encode("still")) == "still"


def test_what_the_library_refuses_of_a_text_is_one_sentence_too(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"Hello": 0}, "unk_token": "missing"}
    with pytest.raises(CheckpointError, match="cannot be used"):
        tokenizer_with(tmp_path, model=model, added_tokens=[])


BOMB = replace({"String": "h"}, "h" * 1000)
BOMBS: dict[str, dict[str, Any]] = {
    "four times a thousand": {"normalizer": sequence(BOMB, BOMB, BOMB, BOMB)},
    "nested": {"normalizer": sequence(BOMB, sequence(BOMB))},
    "regular expression": {"normalizer": sequence(*[replace({"Regex": "."}, "hh")] * 40)},
    "nothing replaced": {"normalizer": sequence(*[replace({"String": ""}, "ab")] * 30)},
    "prepended": {"normalizer": sequence(*[{"type": "Prepend", "prepend": "h" * 100}] * 3)},
    "table": {"normalizer": sequence(*[{"type": "Precompiled", "precompiled_charsmap": charsmap(900)}] * 2)},
    "bytes of bytes": {"pre_tokenizer": sequence(*[{"type": "ByteLevel"}] * 40, of="pretokenizers")},
    "text upon text": {
        "post_processor": sequence(
            *[{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 9}] * 9,
            of="processors",
        )
    },
    "pieces": {
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 1000}
    },
}


@pytest.mark.parametrize("parts", BOMBS.values(), ids=BOMBS)
def test_a_tokenizer_that_multiplies_texts_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any]
) -> None:
    monkeypatch.setattr("headstart.text.directory_tokenizer.Backend", None)
    with pytest.raises(CheckpointError, match="bytes of one byte of text, above the limit of 1024"):
        tokenizer_with(tmp_path, **parts)


def test_a_decoder_that_multiplies_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="bytes of one byte of a token"):
        tokenizer_with(tmp_path, decoder={"type": "Sequence", "decoders": [BOMB, BOMB]})


def test_what_multiplies_a_little_reads_short_texts(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, normalizer=replace({"String": "h"}, "h" * 100))
    assert len(tokenizer.encode("hih", add_special_tokens=False)) == 201
    with pytest.raises(RequestError, match="give a shorter text"):
        tokenizer.encode("h" * 1_000_000)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, 1),
        ({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"}}, 6),
        ({"normalizer": replace({"String": " "}, "▁")}, 3),
        ({"normalizer": sequence({"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁"))}, 12),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(33)}}, 33),
        ({"normalizer": 7, "pre_tokenizer": [], "post_processor": {"type": 3}}, 1),
    ],
)
def test_growth_is_reckoned_from_the_file(parts: dict[str, Any], expected: float) -> None:
    assert growth(parts) == expected
